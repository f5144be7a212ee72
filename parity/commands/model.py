"""`diptych parity model MODEL`: a whole model in both panels, layer by layer and at its end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from engine.checkpoint import CheckpointError, dummy_checkpoint, open_checkpoint, resolve_model, shape_file
from engine.checkpoint.checkpoint import Checkpoint
from engine.usage import UsageError
from optimized.compile.arch import ARCHS, arch_named
from optimized.model.machine import Machine
from parity.commands.choose import need_compiler, one_of
from parity.whole_model import ModelParity, compare
from reference.formats import format_named
from reference.model.config import ConfigError
from reference.serving.runner import Refused

BLOCK_SIZES = {"device": 128, "simulate": 16}  # tokens; what is opened is cleared, which takes time on a simulated GPU


def main(arguments: Sequence[str]) -> int:
    """Compare, print a table, write JSON. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    need_compiler()
    try:
        checkpoint = _cut(_checkpoint(options), options.layers)
        token_ids = np.random.default_rng(options.seed).integers(0, checkpoint.config.vocab_size, options.tokens)
        machine, where = _machine(options)
        block_size = BLOCK_SIZES[options.on]
        found = compare(checkpoint.config, checkpoint.tensors, machine, token_ids.astype(np.int32), block_size)
    except (CheckpointError, ConfigError, Refused) as error:
        raise UsageError(str(error)) from error
    Console().print(_table(f"{options.model}, {options.dtype}, {options.tokens} tokens, {where}", found))
    if options.json is not None:
        names = ("model", "dtype", "tokens", "seed", "layers")
        config = {name: getattr(options, name) for name in names} | {"where": where}
        options.json.write_text(json.dumps({"config": config, **asdict(found), "ok": found.ok}, indent=1) + "\n")
    return int(not found.ok)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych parity model", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="as for `diptych serve`, or a shape such as qwen3-8b")
    parser.add_argument("--on", choices=tuple(BLOCK_SIZES), default="device", help="(default: %(default)s)")
    parser.add_argument("--arch", default="sm_90a", metavar=",".join(ARCHS), help="that is simulated (default sm_90a)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--layers", type=_count, metavar="N", help="the first so many (default: all)")
    parser.add_argument("--tokens", type=_count, default=64, metavar="N", help="of one sequence (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the tokens, and of a shape's weights")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _checkpoint(options: argparse.Namespace) -> Checkpoint:
    dtype = format_named(options.dtype)
    if shape_file(options.model):
        return dummy_checkpoint(options.model, options.seed, dtype=dtype)
    return open_checkpoint(resolve_model(options.model), dtype=dtype)


def _cut(checkpoint: Checkpoint, layers: int | None) -> Checkpoint:
    """Its first layers alone."""
    config = checkpoint.config
    if layers is None:
        return checkpoint
    if layers > config.num_layers:
        raise UsageError(f"--layers is {layers}; the model has {config.num_layers}")
    cut = replace(config, num_layers=layers, sparse_layers=config.sparse_layers[:layers])
    return replace(checkpoint, config=cut)


def _machine(options: argparse.Namespace) -> tuple[Machine, str]:
    """And what it is called."""
    if options.on == "device":
        from optimized.model.gpu_machine import GpuMachine

        machine = GpuMachine()
        import torch

        return machine, torch.cuda.get_device_name()
    from parity.executors.simulate.machine import SimulatedMachine

    arch = arch_named(one_of("architecture", options.arch, ARCHS))
    return SimulatedMachine(arch), f"simulated {arch.chip}"


def _table(title: str, found: ModelParity) -> Table:
    table = Table("", "ours, median token", "reference", "ours, worst token", "reference", "unit", "", title=title)
    for one in found.compared:
        numbers = one.ours.median, one.reference.median, one.ours.worst, one.reference.worst
        table.add_row(one.what, *(f"{number:.3g}" for number in numbers), one.unit, "ok" if one.ok else "FAIL")
    shares = found.agreement, found.agreement_of_reference, found.agreement_of_panels
    told = "likeliest token: ours the exact one's {:.1%}, the reference's {:.1%}, both panels' the same {:.1%}"
    table.caption = told.format(*shares)
    return table

"""`diptych bench serve`: the engine's throughput beside transformers, in one process, with the same weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from engine.cache import cache_directory
from engine.checkpoint import Checkpoint, dummy_checkpoint, open_checkpoint, resolve_model, shape_file
from engine.core.engine import Engine
from engine.core.settings import EngineSettings
from engine.detokenize import detokenizers
from engine.panels import named
from engine.tokenizer import Tokenizer
from engine.usage import UsageError
from parity.bench.engine_side import serve
from parity.bench.workload import workload
from reference.formats import format_named


@dataclass(frozen=True)
class Measurement:
    """Tokens per second of one workload at one concurrency: medians of several runs of each side in turn."""

    model: str
    dtype: str
    workload: str
    concurrency: int
    requests: int
    tokens: int
    ours: float
    transformers: float | None
    ratio: float | None  # median of the ratios of runs that followed each other: noise of minutes drops out


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, write JSON. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    console = Console()
    measurements = []
    for dtype in options.dtype:
        measurements += _measure(options, dtype, console)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in measurements], indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych bench serve", description="Throughput beside transformers, in one run.")
    parser.add_argument("model", nargs="?", default="dense", metavar="MODEL", help="as for `diptych serve`")
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--panel", default="reference")
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=("float32", "bfloat16"))
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32], metavar="N")
    parser.add_argument("--workload", nargs="+", default=["even", "mixed"], choices=("even", "mixed"))
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="requests = rounds x concurrency")
    parser.add_argument("--prompt", type=int, default=64, metavar="TOKENS", help="mean (default %(default)s)")
    parser.add_argument("--output", type=int, default=64, metavar="TOKENS", help="mean (default %(default)s)")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=EngineSettings.max_num_batched_tokens, metavar="N"
    )
    parser.add_argument("--peer", choices=("transformers", "none"), default="transformers")
    parser.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="runs of each side in turn; the median counts"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there")
    return parser


def _measure(options: argparse.Namespace, dtype: str, console: Console) -> list[Measurement]:
    checkpoint = _checkpoint(options)
    tokenizer = Tokenizer.from_directory(checkpoint.directory)
    num_token_ids = min(tokenizer.num_token_ids, checkpoint.config.vocab_size)
    tensors = _Converted(checkpoint.tensors, dtype)
    config = replace(checkpoint.config, dtype=format_named(dtype))
    longest = 2 * (options.prompt + options.output)
    concurrency = max(options.concurrency)
    build = named(options.panel).load()
    limits = {"num_token_ids": num_token_ids, "max_model_len": longest}
    runner = build(config, tensors, num_kv_tokens=concurrency * longest, cache=cache_directory(), **limits)
    settings = EngineSettings(
        max_num_seqs=concurrency,
        max_num_batched_tokens=max(options.max_num_batched_tokens, concurrency),
        prefix_cache=False,  # or the repetition of a workload would find its prompts there
    )
    engine = Engine(runner, detokenizers(tokenizer), eos_token_ids=(), settings=settings, **limits)
    peer = None
    if options.peer == "transformers":
        from parity.bench.transformers_side import TransformersPeer

        shape = shape_file(options.model) if options.load_format == "dummy" else None
        peer = TransformersPeer(shape or checkpoint.directory / "config.json", checkpoint.tensors, dtype)
    table = Table("workload", "at once", "requests", "tokens", "ours tok/s", "transformers tok/s", "ratio")
    table.title = f"{options.model}, {dtype}, about {options.prompt} tokens in and {options.output} out"
    measured = []
    for kind in options.workload:
        for at_once in options.concurrency:
            count = options.rounds * at_once if at_once > 1 else max(2, options.rounds)
            work = workload(kind, count, num_token_ids, prompt=options.prompt, output=options.output)
            serve(engine, work, at_once)  # compiles
            if peer is not None:
                peer.serve(work[:1], 1)
            ours, theirs = [], []
            for _ in range(options.repeat):
                ours.append(serve(engine, work, at_once))
                if peer is not None:
                    theirs.append(peer.serve(work, at_once))
            tokens = sum(one.num_output for one in work)
            one = Measurement(
                options.model,
                dtype,
                kind,
                at_once,
                count,
                tokens,
                tokens / median(ours),
                tokens / median(theirs) if theirs else None,
                median(b / a for a, b in zip(ours, theirs, strict=True)) if theirs else None,
            )
            measured.append(one)
            theirs_shown = ("-", "-") if one.ratio is None else (f"{one.transformers:.1f}", f"{one.ratio:.2f}")
            table.add_row(kind, str(at_once), str(count), str(tokens), f"{one.ours:.1f}", *theirs_shown)
            console.print(f"{kind} x{at_once}: {one.ours:.1f} tok/s, peer {theirs_shown[0]}", highlight=False)
    console.print(table)
    return measured


def _checkpoint(options: argparse.Namespace) -> Checkpoint:
    if options.load_format == "dummy":
        return dummy_checkpoint(options.model if shape_file(options.model) else resolve_model(options.model), 0)
    checkpoint = open_checkpoint(resolve_model(options.model))
    if checkpoint.config.fp8_blocks:
        raise UsageError("FP8 checkpoints have no float32 or bfloat16 twin in transformers on a CPU; choose another")
    return checkpoint


class _Converted(Mapping[str, np.ndarray]):
    """Tensors in another dtype, each converted when it is taken."""

    def __init__(self, tensors: Mapping[str, np.ndarray], dtype: str) -> None:
        self._tensors, self._dtype = tensors, format_named(dtype).dtype

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name].astype(self._dtype, copy=False)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

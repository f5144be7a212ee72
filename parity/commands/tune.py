"""`diptych tune`: which library computes a model's products and attention fastest on the GPU at hand; it is kept."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.checkpoint import CheckpointError, resolve_model, shape_file
from engine.checkpoint.checkpoint import read_config
from engine.usage import UsageError
from reference.model.config import ConfigError

TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, keep the file. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    try:
        import torch

        from optimized import tuned
        from optimized.device import device_of
        from parity.bench.build_each import build_each
        from parity.bench.tune_measure import measure
        from parity.bench.tune_work import subjects_of
    except ImportError as error:
        raise UsageError(f"diptych tune needs the optimized panel ({error}); pip install 'diptych[gpu]'") from error
    if not torch.cuda.is_available():
        raise UsageError("diptych tune measures on a GPU, and there is none here")
    try:
        configs = [read_config(shape_file(one) or resolve_model(one) / "config.json", None) for one in options.model]
        directory = options.out or (tuned.packaged_directory() if options.write else tuned.user_directory())
        chip = torch.cuda.get_device_name()
        file = directory / tuned.file_name(chip)
        kept, versions = tuned.read(file)
    except (CheckpointError, ConfigError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    device = device_of(torch.empty(0, device="cuda"))
    work = {
        (one.operation, one.sizes, one.rows, one.dtype): (one, config.num_experts_per_token)
        for config in configs
        for tokens in options.tokens
        for one in subjects_of(config, tokens)
    }
    _require_known(options.without, (choice for one, _ in work.values() for choice in one.choices(device.arch)))
    console = Console()
    console.print(f"{chip}, torch {torch.__version__}", highlight=False)
    if kept and versions != tuned.installed_versions():
        console.print(f"{file} is of other versions of the libraries: nothing of it is kept", highlight=False)
        kept = []
    kernels = [
        kernel
        for one, _ in work.values()
        for kernel in one.kernels(
            device.arch, device.num_sms, [name for name in one.choices(device.arch) if name not in options.without]
        )
    ]
    refused = build_each(kernels, device.arch, jobs=options.jobs)
    measured, died = [], None
    table = Table("what", "sizes", "rows", "best", "us", "TFLOP/s", "invariant", "us", "by others, us", "left out")
    for subject, per_token in work.values():
        found = measure(subject, device, per_token, refused, options.without)
        _add_row(table, subject, found)
        if not found.is_alive:
            died = list(found.failed)[-1]
            break
        if found.times:
            measured.append(tuned.Measured(subject.operation, subject.sizes, subject.rows, subject.dtype, found.times))
    console.print(table)
    write(file, chip, tuned.installed_versions(), tuned.Tuned([*kept, *measured]).measured.values())
    print(f"{len(measured)} measurements are in {file}")
    if died is not None:
        raise UsageError(
            f"{died!r} left the GPU in an error that ends this process's use of it: neither {subject.what} at "
            f"{subject.rows} rows nor what follows was kept; run again with --without {died!r}"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych tune", description=__doc__)
    parser.add_argument("model", nargs="+", metavar="MODEL", help="as for `diptych serve`, or a shape such as qwen3-8b")
    parser.add_argument("--tokens", nargs="+", type=_at_least_one, default=TOKENS, metavar="N", help="of a step")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--write", action="store_true", help="keep it in the package, for all who have such a chip")
    where.add_argument("--out", type=Path, metavar="DIR", help="keep it there (default: the cache)")
    parser.add_argument("--without", nargs="+", default=(), metavar="CHOICE", help="leave out, as 'quack 128x256 2x1'")
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=_at_least_one, default=jobs, metavar="N", help="processes that compile")
    return parser


def _at_least_one(text: str) -> int:
    """Errors: ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _require_known(without: Iterable[str], choices: Iterable[str]) -> None:
    """Errors: UsageError for what no operation could be computed by."""
    known = dict.fromkeys(choices)
    for choice in without:
        if choice not in known:
            raise UsageError(f"--without {choice!r}: there is no such choice here; there are {', '.join(known)}")


def _add_row(table: Table, subject: Any, found: Any) -> None:
    from optimized.tuned import is_invariant

    times = found.times
    row = [subject.what, "x".join(map(str, subject.sizes)), str(subject.rows)]
    if times:
        best = min(times, key=times.__getitem__)
        steady = min(filter(is_invariant, times), key=times.__getitem__, default=best)
        row += [best, f"{times[best]:.1f}", f"{subject.flops / times[best] / 1e6:.0f}", steady, f"{times[steady]:.1f}"]
    else:
        row += ["none", *[""] * 4]
    others = ", ".join(f"{choice} {time:.1f}" for choice, time in times.items() if not is_invariant(choice))
    left_out = "\n".join(f"{choice}: {why}" for choice, why in found.failed.items())
    table.add_row(*row, others, escape(left_out))


def write(file: Path, chip: str, versions: Mapping[str, str], measured: Iterable[Any]) -> None:
    """One measurement a line, in order. The file is replaced as a whole: whoever reads it finds the old or the new."""
    rows = [
        json.dumps(
            {
                "operation": one.operation,
                "sizes": list(one.sizes),
                "rows": one.rows,
                "dtype": one.dtype,
                "microseconds": dict(one.microseconds),
            }
        )
        for one in sorted(measured, key=lambda one: (*one.subject, one.rows))
    ]
    head = f'{{"chip": {json.dumps(chip)}, "versions": {json.dumps(dict(versions))}, "measured": [\n'
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
    try:
        part.write_text(head + ",\n".join(rows) + "\n]}\n", encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)

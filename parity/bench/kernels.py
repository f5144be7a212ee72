"""`diptych bench kernels`: the twins on the GPU at hand, beside their peers and the copy bandwidth of the same run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.checkpoint import shape_file
from engine.checkpoint.checkpoint import read_config
from engine.usage import UsageError
from parity.bench.gpu_timing import copy_bandwidth, microseconds, sets_for
from parity.bench.kernel_work import Work, works
from parity.shape import Shape

SHAPES = ("qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b")
TOKENS = (1, 8, 64, 512, 4096, 32768)


@dataclass(frozen=True)
class Measurement:
    """One operation at one size."""

    operation: str
    shape: str
    tokens: int
    chip: str
    num_bytes: int
    microseconds: dict[str, float]  # ours, and each peer's
    copy_gbytes_per_second: float  # of the same run
    failed: dict[str, str]  # who could not, and why

    @property
    def share_of_copy(self) -> float:
        """Of the bandwidth of a large copy."""
        return self.num_bytes / self.microseconds["ours"] / 1e3 / self.copy_gbytes_per_second

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the fastest peer."""
        peers = [value for name, value in self.microseconds.items() if name != "ours"]
        return min(peers) / self.microseconds["ours"] if peers else None


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, write JSON. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        raise UsageError("diptych bench kernels needs a GPU, and there is none here")
    chip, limit = torch.cuda.get_device_name(), copy_bandwidth()
    console = Console()
    console.print(f"{chip}, torch {torch.__version__}; copy {limit:.0f} GB/s (read + write)", highlight=False)
    measured = []
    for shape in _shapes(options):
        for tokens in options.tokens:
            for work in works(shape, tokens):
                if not options.operation or work.operation in options.operation:
                    measured.append(_measure(work, shape.name, tokens, chip, limit))
            torch.cuda.empty_cache()
    console.print(_table(measured))
    if options.json is not None:
        records = [asdict(one) | {"share_of_copy": one.share_of_copy, "ratio": one.ratio} for one in measured]
        options.json.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych bench kernels", description="The twins on a GPU, beside their peers.")
    parser.add_argument("operation", nargs="*", metavar="OPERATION", help="default: all")
    parser.add_argument("--shape", nargs="+", default=SHAPES, metavar="NAME")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1], metavar="N", help="tensor-parallel ranks")
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there")
    return parser


def _shapes(options: argparse.Namespace) -> list[Shape]:
    shapes = []
    for name in options.shape:
        file = shape_file(name)
        if file is None:
            raise UsageError(f"there is no shape {name!r}")
        shapes += [Shape.of(name, read_config(file, None), ranks) for ranks in options.ranks]
    return shapes


def _measure(work: Work, shape: str, tokens: int, chip: str, limit: float) -> Measurement:
    """Each side by itself. One that fails is told, and the others go on."""
    sets = work.make(sets_for(work.num_bytes), "cuda")
    times, failed = {}, {}
    for name in sets[0]:
        try:
            times[name] = microseconds([calls[name] for calls in sets])
        except Exception as error:
            if name == "ours":
                raise
            failed[name] = f"{type(error).__name__}: {error}"
    return Measurement(work.operation, shape, tokens, chip, work.num_bytes, times, limit, failed)


def _table(measured: Sequence[Measurement]) -> Table:
    table = Table("operation", "shape", "tokens", "ours us", "peers us", "ratio", "GB/s", "of copy")
    for one in measured:
        ours = one.microseconds["ours"]
        peers = ", ".join(f"{name} {value:.2f}" for name, value in one.microseconds.items() if name != "ours")
        failed = "".join(f", {name} failed" for name in one.failed)
        table.add_row(
            one.operation,
            one.shape,
            str(one.tokens),
            f"{ours:.2f}",
            peers + failed,
            "-" if one.ratio is None else f"{one.ratio:.2f}",
            f"{one.num_bytes / ours / 1e3:.0f}",
            f"{one.share_of_copy:.0%}",
        )
    return table

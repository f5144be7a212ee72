"""What a simulated launch did, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from simulators.gpu.arguments import TYPES, ArrayArgument
from simulators.gpu.checks.counters import Counters, Counts
from simulators.gpu.chip import Chip
from simulators.gpu.memory.global_memory import Allocation
from simulators.gpu.report import Report

SHOWN_PLACES = 5
_FLOATS = {TYPES[name] for name in ("f16", "bf16", "f32", "f64", "e4m3", "e5m2")}


def summary(report: Report, chip: Chip) -> str:
    """A line."""
    launch = report.launch
    speed = report.thread_instructions / max(report.seconds, 1e-9)
    blocks, threads = _number(launch.num_blocks, "block"), _number(launch.block_threads, "thread")
    return (
        f"{launch.kernel} on {chip.name}: {blocks} of {threads}, "
        f"{report.thread_instructions:,} thread-instructions in {report.seconds:.3f} s ({speed:.2g} a second)"
    )


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s'[: count != 1]}"


def stem(argument: ArrayArgument) -> str:
    """A short name for an array: its file's, or how it was made."""
    name = argument.text.rpartition(":")[2]
    return Path(name).stem if name.endswith(".npy") else argument.text.partition(":")[0]


def results(
    arguments: Sequence[ArrayArgument],
    before: Sequence[NDArray[Any]],
    allocations: Sequence[Allocation | None],
) -> Table:
    """before: the arrays as they were. Elements whose type is not known are bits, of which there is no least."""
    table = _table("argument", "array", "dtype", "shape", numbers=("changed", "min", "max", "NaN", "never written"))
    for argument, old, allocation in zip(arguments, before, allocations, strict=True):
        array = argument.array
        least, greatest, nans = _statistics(array)
        shape = "x".join(map(str, array.shape)) or "()"
        row = [argument.label, stem(argument), str(array.dtype), shape, f"{_changed(array, old):,}"]
        table.add_row(*map(Text, (*row, least, greatest, nans, _unwritten(array, allocation))))
    return table


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """[elements, bytes of one], in memory order."""
    return array.ravel(order="K").view(np.uint8).reshape(array.size, array.dtype.itemsize)


def _changed(array: NDArray[Any], old: NDArray[Any]) -> int:
    return int((_bytes(array) != _bytes(old)).any(axis=1).sum())


def _unwritten(array: NDArray[Any], allocation: Allocation | None) -> str:
    if allocation is None or allocation.written is None:
        return ""
    written = allocation.written[allocation.start : allocation.start + allocation.size]
    return f"{int((~written.reshape(array.size, -1)).any(axis=1).sum()):,}"


def _statistics(array: NDArray[Any]) -> tuple[str, str, str]:
    if array.dtype in _FLOATS:
        values = array.astype(np.float64)
        is_nan = np.isnan(values)
        real = values[~is_nan]
        least, greatest = (f"{real.min():.6g}", f"{real.max():.6g}") if real.size else ("", "")
        return least, greatest, f"{int(is_nan.sum()):,}"
    if array.dtype.kind in "biu" and array.size:
        return str(array.min()), str(array.max()), ""
    return "", "", ""


def counts(report: Report) -> Iterator[Table]:
    """Nothing, unless somebody counted."""
    for watcher in report.watchers:
        if isinstance(watcher, Counters):
            yield _opcodes(watcher.counts)
            yield _traffic(watcher.counts)
            yield _divergence(watcher.counts)


def _opcodes(of: Counts) -> Table:
    table = _table("opcode", numbers=("thread-instructions", "warp-instructions"))
    for opcode, number in of.thread_instructions.most_common():
        table.add_row(opcode, f"{number:,}", f"{of.warp_instructions[opcode]:,}")
    return table


def _traffic(of: Counts) -> Table:
    table = _table("space", "access", numbers=("requests", "bytes", "sectors", "efficiency", "bank conflicts"))
    for (space, kind), one in sorted(of.traffic.items()):
        sectors = (f"{one.sectors:,}", f"{one.efficiency:.0%}") if space == "global" else ("", "")
        conflicts = f"{one.conflicts:,}" if space == "shared" else ""
        table.add_row(space, kind, f"{one.requests:,}", f"{one.bytes:,}", *sectors, conflicts)
    return table


def _divergence(of: Counts) -> Table:
    table = _table("warps split by a branch", numbers=("times",))
    table.add_row("in all", f"{of.divergent_branches:,}")
    for place, times in of.divergent_places.most_common(SHOWN_PLACES):
        table.add_row(Text(f"  at {place}"), f"{times:,}")
    return table


def _table(*names: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table

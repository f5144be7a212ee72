"""A kernel, decoded: its operations, where straight runs of them end, and the memory that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulators.gpu.machine.operation import Operation, Run
from simulators.gpu.ptx.module import Kernel


@dataclass(frozen=True)
class Guard:
    """The predicate on which an instruction depends."""

    number: int  # of its register
    is_inverted: bool


@dataclass(frozen=True)
class Loop:
    """What may be executed between two visits of a label to which a branch goes back."""

    written: tuple[int, ...]  # registers
    reads_clock: bool
    is_endless: bool  # nothing in it leads out of it


@dataclass(frozen=True)
class Program:
    """What a machine runs."""

    kernel: Kernel
    operations: tuple[Operation, ...]
    runs: tuple[Run | None, ...]  # of the straight ones, which heed their guard themselves
    guards: tuple[Guard | None, ...]  # of the others
    segment_end: tuple[int, ...]  # for each straight operation, the first one after it that is not, or is a label's
    may_wait: tuple[bool, ...]  # branches back around something that polls
    loops: Mapping[int, Loop]  # by where they begin
    register_types: tuple[str, ...]
    static_shared_bytes: int
    local_bytes: int  # of each thread

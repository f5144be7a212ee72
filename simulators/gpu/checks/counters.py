"""What a kernel costs: instructions, bytes by space, sectors, bank conflicts, branches that split a warp.

A request is one instruction of one warp. Global memory moves in sectors of 32 bytes: a request of N bytes needs at
least N / 32 of them, and one whose threads lie apart needs more. Shared memory has 32 banks of 4 bytes: words of one
bank take their turns. Source: CUDA C++ Programming Guide, "Global Memory", "Shared Memory".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.chip import WARP
from simulators.gpu.ptx.module import Instruction, Place
from simulators.gpu.watch import Access, Watcher

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

SECTOR = 32  # bytes
BANKS = 32
WORD = 4  # bytes
_TURN = BANKS * WORD  # bytes that shared memory moves at once: wider requests are served in parts


@dataclass
class Traffic:
    """Of one state space, one way."""

    requests: int = 0
    bytes: int = 0  # that threads asked for
    sectors: int = 0  # global memory
    turns: int = 0  # shared memory: cycles that the banks need
    least_turns: int = 0  # and would need without conflicts

    @property
    def efficiency(self) -> float:
        """Of the bytes moved, those that were asked for (at most 1: threads may ask for the same)."""
        return min(1.0, self.bytes / (self.sectors * SECTOR)) if self.sectors else 1.0

    @property
    def conflicts(self) -> int:
        return self.turns - self.least_turns


@dataclass
class Counts:
    """Of one launch."""

    thread_instructions: Counter[str] = field(default_factory=Counter)  # by opcode, false guards among them
    warp_instructions: Counter[str] = field(default_factory=Counter)
    traffic: dict[tuple[str, str], Traffic] = field(default_factory=dict)  # by space and "read", "write", "update"
    by_instruction: dict[Instruction, Traffic] = field(default_factory=dict)
    divergent_branches: int = 0  # times that a branch split a warp
    divergent_places: Counter[Place] = field(default_factory=Counter)


class Counters(Watcher):
    """Counts while a launch runs. Its figures are those of the schedule that ran."""

    def __init__(self) -> None:
        self.counts = Counts()

    def executed(self, machine: Machine, first: int, end: int, threads: Threads) -> None:
        number = machine.batch.count(threads)
        warps = _num_distinct(machine.batch.warp[threads])
        for operation in machine.program.operations[first:end]:
            self.counts.thread_instructions[operation.instruction.opcode] += number
            self.counts.warp_instructions[operation.instruction.opcode] += warps

    def diverged(self, machine: Machine, instruction: Instruction, taken: Threads, rest: Threads) -> None:
        split = len(np.intersect1d(machine.batch.warp[taken], machine.batch.warp[rest]))
        self.counts.divergent_branches += split
        if split:
            self.counts.divergent_places[instruction.place] += split

    def access(self, machine: Machine, access: Access) -> None:
        one = Traffic()
        warps = machine.batch.warp[access.threads]
        one.requests = _num_distinct(warps)
        one.bytes = access.size * len(access.threads)
        if access.space == "global":
            one.sectors = _sectors(warps, access.offsets, access.size)
        elif access.space == "shared":
            one.turns, one.least_turns = _turns(machine.batch.lane[access.threads], warps, access.offsets, access.size)
        for traffic in (
            self.counts.traffic.setdefault((access.space, access.kind), Traffic()),
            self.counts.by_instruction.setdefault(access.instruction, Traffic()),
        ):
            for name, value in vars(one).items():
                setattr(traffic, name, getattr(traffic, name) + value)


def _sectors(warps: NDArray[np.int32], offsets: NDArray[np.intp], size: int) -> int:
    first = offsets // SECTOR
    per_access = max(size // SECTOR, 1)
    sectors = (first[:, None] + np.arange(per_access)).ravel()
    return len(_distinct_pairs(np.repeat(warps, per_access), sectors)[0])


def _turns(
    lanes: NDArray[np.uint32], warps: NDArray[np.int32], offsets: NDArray[np.intp], size: int
) -> tuple[int, int]:
    """A request of more than 4 bytes a thread is served to a half or a quarter of the warp at a time."""
    threads_at_once = min(WARP, max(_TURN // max(size, WORD), 1))
    parts = warps.astype(np.int64) * WARP + lanes // threads_at_once
    words_each = max(size // WORD, 1)
    words = ((offsets // WORD)[:, None] + np.arange(words_each)).ravel()
    owners, distinct = _distinct_pairs(np.repeat(parts, words_each), words)
    # Of each part's distinct words, the most that one bank has.
    number = np.cumsum(np.diff(owners, prepend=owners[:1]) != 0)  # of the part, among those that there are
    in_bank = np.bincount(number * BANKS + distinct % BANKS, minlength=BANKS * (int(number[-1]) + 1))
    most = in_bank.reshape(-1, BANKS).max(axis=1)
    return int(most.sum()), len(most)


def _num_distinct(values: NDArray[np.integer]) -> int:
    """Threads come in their order, so their warps mostly do."""
    steps = np.diff(values)
    if (steps < 0).any():
        steps = np.diff(np.sort(values))
    return int(np.count_nonzero(steps)) + (len(values) > 0)


def _distinct_pairs(
    first: NDArray[np.integer], second: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both in ascending order of the first. Numbers from 0."""
    span = int(second.max()) + 1
    keys = np.sort(first.astype(np.int64) * span + second)
    keys = keys[np.diff(keys, prepend=-1) != 0]
    return keys // span, keys % span

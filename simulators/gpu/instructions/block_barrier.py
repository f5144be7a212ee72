"""The barriers of a block, at which whole warps arrive.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.chip import WARP
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.scope import Destination
from simulators.gpu.machine.waiting import name_threads
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]
BARRIERS = 16  # of a block


@dataclass(frozen=True)
class Arrival:
    """Threads that came to a barrier together."""

    threads: NDArray[np.intp]
    waits: bool  # False: they have gone on
    count: int  # that the instruction names; 0: all of the block
    reduction: str = ""  # "popc", "and", "or"
    flags: Array | None = None
    put: Destination | None = None
    place: str = ""

    def of(self, which: NDArray[np.bool_]) -> Arrival:
        """Some of the threads."""
        flags = None if self.flags is None else self.flags[which]
        return replace(self, threads=self.threads[which], flags=flags)


class BlockBarriers:
    """Who has come to each barrier of each block, and is not let go. A warp has come when all its living threads have;
    it counts for 32, however many they are."""

    def __init__(self) -> None:
        self._arrivals: dict[tuple[int, int], list[Arrival]] = {}  # by slot and barrier

    def arrive(self, machine: Machine, instruction: Instruction, barrier: int, arrival: Arrival) -> None:
        """Threads, of one or more blocks, come to a barrier. Those that can go on are resumed. Errors: SimulatorError
        if others have come to it for another number of threads."""
        slots = machine.batch.slot[arrival.threads]
        for slot in np.unique(slots).tolist():
            part = arrival.of(slots == slot)
            here = self._arrivals.get((slot, barrier), [])
            if here and _named(machine, here[0]) != _named(machine, part):
                message = f"it names {_named(machine, part)} threads for barrier {barrier}, and {here[0].place} another"
                raise machine.fault(instruction, int(part.threads[0]), f"{message} number")
            warps = machine.batch.warp[part.threads]
            distinct = np.unique(warps)
            room = self._needed(machine, slot, part) - int(_arrived(machine, slot, here).sum())
            if part.count == 0 or len(distinct) <= room:
                self._add(machine, slot, barrier, part)
                continue
            for warp in distinct:  # the barrier is complete when enough have come, and the others come to the next one
                self._add(machine, slot, barrier, part.of(warps == warp))

    def is_empty(self) -> bool:
        return not self._arrivals

    def _add(self, machine: Machine, slot: int, barrier: int, arrival: Arrival) -> None:
        self._arrivals.setdefault((slot, barrier), []).append(arrival)
        self._complete(machine, slot, barrier)

    def _complete(self, machine: Machine, slot: int, barrier: int) -> None:
        arrivals = self._arrivals[slot, barrier]
        came = _arrived(machine, slot, arrivals)
        if int(came.sum()) < self._needed(machine, slot, arrivals[0]):
            return
        del self._arrivals[slot, barrier]
        if (came == 0).any():  # threads whose warp has not come whole wait on
            first_warp = slot * machine.batch.warps_per_slot
            is_whole = [came[machine.batch.warp[one.threads] - first_warp] > 0 for one in arrivals]
            left = [one.of(~whole) for one, whole in zip(arrivals, is_whole, strict=True) if not whole.all()]
            if left:
                self._arrivals[slot, barrier] = left
                arrivals = [one.of(whole) for one, whole in zip(arrivals, is_whole, strict=True) if whole.any()]
        _tell(machine, arrivals)
        _reduce(machine, arrivals)
        for one in arrivals:
            if one.waits:
                machine.resume(one.threads)

    @staticmethod
    def _needed(machine: Machine, slot: int, arrival: Arrival) -> int:
        """Warps."""
        if arrival.count:
            return arrival.count // WARP
        return int(_alive(machine, slot).any(axis=1).sum())

    def exited(self, machine: Machine) -> None:
        for slot, barrier in list(self._arrivals):
            self._complete(machine, slot, barrier)

    def waits(self, machine: Machine) -> Iterator[str]:
        for (slot, barrier), arrivals in sorted(self._arrivals.items()):
            threads = np.concatenate([one.threads for one in arrivals])
            living = slot * machine.batch.slot_threads + np.flatnonzero(_alive(machine, slot))
            missing = np.setdiff1d(living, threads)
            absent = f"; {name_threads(machine, missing)} have not" if len(missing) else ""
            yield (
                f"{name_threads(machine, threads)} have come to barrier {barrier}, which waits for "
                f"{arrivals[0].count or len(living)}, at {arrivals[0].place}{absent}"
            )


def _named(machine: Machine, arrival: Arrival) -> int:
    return arrival.count or machine.batch.slot_threads


def _alive(machine: Machine, slot: int) -> NDArray[np.bool_]:
    """[warps, 32]."""
    first = slot * machine.batch.slot_threads
    return machine.batch.alive[first : first + machine.batch.slot_threads].reshape(-1, WARP)


def _arrived(machine: Machine, slot: int, arrivals: list[Arrival]) -> NDArray[np.intp]:
    """How often each of the block's warps has come whole, [warps]."""
    alive = _alive(machine, slot)
    if not arrivals:
        return np.zeros(len(alive), np.intp)
    threads = np.concatenate([one.threads for one in arrivals]) - slot * machine.batch.slot_threads
    times = np.bincount(threads, minlength=alive.size).reshape(-1, WARP)
    # Those that have come, and have ended since, count if nobody else of their warp is left.
    least = np.where(alive, times, np.iinfo(np.intp).max).min(axis=1)
    return np.where(alive.any(axis=1), least, times.max(axis=1))


def _tell(machine: Machine, arrivals: list[Arrival]) -> None:
    if not machine.watchers:
        return
    threads = np.unique(np.concatenate([one.threads for one in arrivals]))
    waiting = [one.threads for one in arrivals if one.waits]
    for watcher in machine.watchers:
        if len(waiting) == len(arrivals):
            watcher.synchronized(machine, threads[None])
        elif waiting:
            watcher.gathered(machine, threads, np.concatenate(waiting))


def _reduce(machine: Machine, arrivals: list[Arrival]) -> None:
    flags = [one.flags for one in arrivals if one.flags is not None]
    if not flags:
        return
    joined = np.concatenate(flags)
    for one in arrivals:
        if one.put is not None:
            value: Any = {
                "popc": np.uint32(np.count_nonzero(joined)),
                "and": np.bool_(joined.all()),
                "or": np.bool_(joined.any()),
            }[one.reduction]
            one.put(machine, one.threads, np.full(len(one.threads), value))

"""`bar.warp.sync`: threads of a warp wait for those that their mask names, wherever in the kernel each of them does.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: bar.warp.sync".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads, is_all, pack_lanes
from simulators.gpu.instructions.warp_meeting import FULL, check_members
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Meeting
from simulators.gpu.machine.scope import Source
from simulators.gpu.machine.waiting import name_threads
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]


class WarpBarriers:
    """Which threads wait, and the masks that they name."""

    def __init__(self) -> None:
        self._waits = np.zeros(0, np.bool_)  # by thread
        self._masks = np.zeros(0, np.uint32)

    def meet(self, machine: Machine, pc: int, instruction: Instruction, threads: Threads, masks: Array) -> Threads:
        """Those of them that go on at once. Others that they have waited for, or that wait, are resumed later."""
        if is_all(threads) and masks.ndim == 0 and masks == FULL:
            _tell(machine, machine.batch.numbers(threads), masks)
            return threads
        self._grow(machine)
        numbers = machine.batch.numbers(threads)
        check_members(machine, instruction, numbers, np.broadcast_to(masks, numbers.shape))
        self._waits[numbers] = True
        self._masks[numbers] = masks
        machine.batch.pc[numbers] = pc
        done = self._complete(machine)
        is_mine = np.isin(done, numbers)
        if not is_mine.all():
            machine.resume(done[~is_mine])
        return machine.batch.as_set(done[is_mine])

    def _complete(self, machine: Machine) -> NDArray[np.intp]:
        """Those whose whole mask has come wait no longer."""
        batch = machine.batch
        living = pack_lanes(batch.alive)
        done = np.zeros(batch.num_threads, np.bool_)
        for mask in np.unique(self._masks[self._waits]):
            members = self._waits & (self._masks == mask)
            lacks = mask & living & ~pack_lanes(members) != 0
            done |= members & ~lacks[batch.warp]
        self._waits &= ~done
        numbers = np.flatnonzero(done)
        if len(numbers):
            _tell(machine, numbers, self._masks[numbers])
        return numbers

    def _grow(self, machine: Machine) -> None:
        more = machine.batch.num_threads - len(self._waits)
        if more:
            self._waits = np.concatenate([self._waits, np.zeros(more, np.bool_)])
            self._masks = np.concatenate([self._masks, np.zeros(more, np.uint32)])

    def exited(self, machine: Machine) -> None:
        self._grow(machine)
        if self._waits.any() and len(done := self._complete(machine)):
            machine.resume(done)

    def waits(self, machine: Machine) -> Iterator[str]:
        batch = machine.batch
        waiting = np.flatnonzero(self._waits)
        for pc in np.unique(batch.pc[waiting]):
            here = waiting[batch.pc[waiting] == pc]
            # Lanes of the same warps that their masks name, that live, and that are not here.
            named = np.zeros(len(batch.alive) // 32, np.uint32)
            np.bitwise_or.at(named, batch.warp[here], self._masks[here])
            missing = np.flatnonzero((named[batch.warp] >> batch.lane & 1 == 1) & batch.alive & ~self._waits)
            others = f" for {name_threads(machine, missing)}, which do not come" if len(missing) else ""
            instruction = machine.program.operations[int(pc)].instruction
            yield f"{name_threads(machine, here)} wait{others} at {instruction.place}: {instruction.text}"


def _tell(machine: Machine, threads: NDArray[np.intp], masks: Array) -> None:
    """Threads of one warp that name different masks meet those of their own mask."""
    if machine.watchers:
        keys = machine.batch.warp[threads].astype(np.int64) << 32 | np.broadcast_to(masks, threads.shape)
        tell_synchronized(machine, threads, keys)


def tell_synchronized(machine: Machine, threads: NDArray[np.intp], keys: Array) -> None:
    """To those who watch: threads with the same key, all of one block, have met."""
    order = np.argsort(keys, kind="stable")
    sets = np.split(threads[order], np.flatnonzero(np.diff(keys[order])) + 1)
    sizes = np.array([len(one) for one in sets])
    for size in np.unique(sizes):
        alike = np.stack([one for one in sets if len(one) == size])
        for watcher in machine.watchers:
            watcher.synchronized(machine, alike)


def warp_barrier(instruction: Instruction, pc: int, mask: Source) -> Meeting:
    def meet(machine: Machine, threads: Threads) -> Threads:
        barriers = machine.rendezvous("warp barriers", WarpBarriers)
        return barriers.meet(machine, pc, instruction, threads, np.asarray(mask(machine, threads)))

    return Meeting(instruction, meet)

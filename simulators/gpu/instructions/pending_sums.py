"""Products of wgmma that are issued, and not yet in the registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.chip import WARP
from simulators.gpu.instructions.fragments import registers_of_sums
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.scope import Destination
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]
_WARPS = 4  # of a warpgroup
_ABSENT = np.uint32(0x7FFF7FFF)  # what the registers hold meanwhile: NaN of f32 and of f16


@dataclass(frozen=True)
class Accumulator:
    """The registers of a D."""

    names: tuple[str, ...]
    puts: tuple[Destination, ...] = field(compare=False)
    columns: int
    bits: int  # of a sum


@dataclass(frozen=True)
class Read:
    """What an instruction has read of shared memory: 16 bytes an access."""

    instruction: Instruction
    addresses: Array  # u64
    threads: NDArray[np.intp]
    words: Array  # u64 [N, 2]
    first_warps: Array  # of each access's warpgroup
    groups: Array  # that these have committed before

    def where(self, chosen: NDArray[np.bool_]) -> Read:
        arrays = (self.addresses, self.threads, self.words, self.first_warps, self.groups)
        return Read(self.instruction, *(array[chosen] for array in arrays))


@dataclass
class _Sums:
    """Of all warps of the batch."""

    bits: Array  # [warps, 16, columns]
    group: NDArray[np.int64]  # the number of its group of commits
    is_pending: NDArray[np.bool_]


class PendingSums:
    """By accumulator, and by the number of the group that each warp has committed or will commit."""

    def __init__(self) -> None:
        self._committed = np.zeros(0, np.int64)  # groups, by warp
        self._sums: dict[Accumulator, _Sums] = {}
        self._reads: list[Read] = []

    def remember(
        self,
        machine: Machine,
        instruction: Instruction,
        addresses: Array,
        threads: Array,
        words: Array,
        first_warps: Array,
    ) -> None:
        """first_warps: of each of the warpgroups, whose accesses are one after another."""
        self._grow(machine)
        firsts = first_warps.repeat(len(addresses) // len(first_warps))
        self._reads.append(Read(instruction, addresses, threads, words, firsts, self._committed[firsts]))

    def before(
        self,
        machine: Machine,
        instruction: Instruction,
        accumulator: Accumulator,
        warps: Array,
        registers: Callable[[], Array],
    ) -> Array:
        """[W, 16, columns]: the sums so far: those that are pending, or those in the registers."""
        self._grow(machine)
        for other, sums in self._sums.items():
            if other != accumulator and sums.is_pending[warps].any() and set(other.names) & set(accumulator.names):
                thread = int(warps[sums.is_pending[warps]][0]) * WARP
                message = "its registers are in part those of a product of another shape that is not complete"
                raise machine.fault(instruction, thread, message)
        if accumulator not in self._sums:
            return registers()
        mine = self._sums[accumulator]
        is_pending = mine.is_pending[warps]
        if is_pending.all():
            return mine.bits[warps]
        return np.where(is_pending[:, None, None], mine.bits[warps], registers())

    def issue(
        self, machine: Machine, instruction: Instruction, accumulator: Accumulator, warps: Array, sums: Array
    ) -> None:
        """sums: [W, 16, columns]."""
        for watcher in machine.watchers:
            watcher.multiplied(machine, instruction, _threads(warps), frozenset(accumulator.names))
        if accumulator not in self._sums:
            count = len(self._committed)
            bits = np.zeros((count, *sums.shape[1:]), sums.dtype)
            self._sums[accumulator] = _Sums(bits, np.zeros(count, np.int64), np.zeros(count, np.bool_))
        mine = self._sums[accumulator]
        fresh = warps[~mine.is_pending[warps]]
        mine.bits[warps] = sums
        mine.group[warps] = self._committed[warps]
        mine.is_pending[warps] = True
        if len(fresh):
            threads = _threads(fresh)
            for put in accumulator.puts:
                put(machine, machine.batch.as_set(threads), np.full(len(threads), _ABSENT))

    def commit(self, machine: Machine, warps: Array) -> None:
        self._grow(machine)
        self._committed[warps] += 1
        for watcher in machine.watchers:
            watcher.committed(machine, _threads(warps), "wgmma")

    def wait(self, machine: Machine, instruction: Instruction, warps: Array, most: int) -> None:
        """All but the latest so many groups of these warps are complete."""
        self._grow(machine)
        for watcher in machine.watchers:
            watcher.completed(machine, _threads(warps), "wgmma", most)
        limit = np.full(len(self._committed), np.iinfo(np.int64).min)  # groups before it are complete
        limit[warps] = self._committed[warps] - most
        reads = []
        for read in self._reads:
            # When one warp knows that a product is complete, the kernel may give away what all four have read.
            done = read.groups < np.maximum.reduce([limit[read.first_warps + i] for i in range(_WARPS)])
            if done.any() and not any(watcher.follows_engines for watcher in machine.watchers):
                _check(machine, instruction, read.where(done))
            if not done.all():
                reads.append(read.where(~done))
        self._reads = reads
        for accumulator, sums in self._sums.items():
            done = warps[sums.is_pending[warps] & (sums.group[warps] < limit[warps])]
            if len(done):
                sums.is_pending[done] = False
                threads = machine.batch.as_set(_threads(done))
                values = registers_of_sums(sums.bits[done], 32)
                for put, value in zip(accumulator.puts, values, strict=True):
                    put(machine, threads, value)

    def _grow(self, machine: Machine) -> None:
        more = machine.batch.num_threads // WARP - len(self._committed)
        if more:
            self._committed = np.concatenate([self._committed, np.zeros(more, np.int64)])
            for sums in self._sums.values():
                sums.bits = np.concatenate([sums.bits, np.zeros((more, *sums.bits.shape[1:]), sums.bits.dtype)])
                sums.group = np.concatenate([sums.group, np.zeros(more, np.int64)])
                sums.is_pending = np.concatenate([sums.is_pending, np.zeros(more, np.bool_)])

    def exited(self, machine: Machine) -> None:
        """Nobody waits here."""

    def waits(self, machine: Machine) -> Iterator[str]:
        return iter(())


def _threads(warps: Array) -> NDArray[np.intp]:
    return (warps.astype(np.intp)[:, None] * WARP + np.arange(WARP)).ravel()


def _check(machine: Machine, instruction: Instruction, read: Read) -> None:
    """Shared memory that was read must be as it was. Nobody is told of this second look."""
    for target in machine.spaces.targets("shared", read.addresses, 16, read.threads):
        found = np.stack(target.buffer.gather(target.offsets, 8, 2), axis=-1)
        changed = (found != (read.words if target.which is None else read.words[target.which])).any(axis=-1)
        if changed.any():
            which = int(np.flatnonzero(changed)[0])
            raise machine.fault(
                read.instruction,
                int(read.threads[which]),
                f"shared memory at {int(read.addresses[which]):#x}, which it reads, was written before "
                f"{instruction.text} ({instruction.place}) waited for it",
            )

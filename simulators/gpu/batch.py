"""The threads of the blocks that are resident: their registers, who they are, and where each stands.

All threads lie in one line: block after block, each padded to whole warps with threads that never live. A set of them
is `ALL` or an ascending array of their numbers; `ALL` costs nothing, because registers are then used whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.chip import WARP
from simulators.gpu.launch import Launch
from simulators.gpu.numbers.arrays import B128

Array = NDArray[np.generic]
Threads = slice | NDArray[np.intp]  # a set of threads
ALL = slice(None)
NONE: NDArray[np.intp] = np.empty(0, np.intp)

REGISTER_DTYPES = {"pred": np.dtype(np.bool_), "b128": B128} | {
    f"{kind}{bits}": np.dtype(f"u{max(bits, 16) // 8}") for kind in "bsuf" for bits in (8, 16, 32, 64)
}
_LANES = np.arange(WARP, dtype=np.uint32)


def is_all(threads: Threads) -> bool:
    return isinstance(threads, slice)


class Batch:
    """Blocks that are resident together, each in a slot of its own."""

    def __init__(
        self,
        launch: Launch,
        blocks: NDArray[np.int64],
        register_types: Sequence[str],
        noise: np.random.Generator | None = None,
    ) -> None:
        """blocks: their numbers in the grid, x fastest. noise: what registers hold before they are written; None:
        zeros."""
        self._noise = noise
        self.launch = launch
        self.blocks = blocks
        self.slots = len(blocks)
        self.block_threads = launch.block_threads
        self.slot_threads = -(-self.block_threads // WARP) * WARP  # padded
        self.warps_per_slot = self.slot_threads // WARP
        self.num_threads = self.slots * self.slot_threads
        nothing = {name: self._nothing(self.num_threads, REGISTER_DTYPES[name]) for name in sorted({*register_types})}
        for one in nothing.values():
            one.flags.writeable = False
        # One array for all registers of a type that nobody has written to yet.
        self.registers: list[Array] = [nothing[name] for name in register_types]
        self.pc = np.zeros(self.num_threads, np.int32)  # of threads that wait for others
        self._name_threads()
        self.alive = self.in_block < self.block_threads
        self.num_alive = int(self.alive.sum())
        self.ended: NDArray[np.bool_] = np.zeros(self.slots, np.bool_)  # by slot: blocks no thread of which is alive

    def _nothing(self, count: int, dtype: np.dtype[Any]) -> Array:
        if self._noise is None:
            return np.zeros(count, dtype)
        if dtype == np.bool_:
            return self._noise.random(count) < 0.5
        return np.frombuffer(bytearray(self._noise.bytes(count * dtype.itemsize)), dtype)

    def _name_threads(self) -> None:
        thread = np.arange(self.num_threads)
        self.slot = (thread // self.slot_threads).astype(np.int32)
        self.warp = (thread // WARP).astype(np.int32)  # among all warps of the batch
        self.in_block = (thread % self.slot_threads).astype(np.uint32)
        self.lane = (thread % WARP).astype(np.uint32)
        self.special: dict[str, Array] = {}  # special registers that were asked for

    def extend(self, blocks: NDArray[np.int64]) -> None:
        """More blocks, in slots after the others. `ALL` then means all of them."""
        first = self.num_threads
        self.blocks = np.concatenate([self.blocks, blocks])
        self.slots = len(self.blocks)
        self.num_threads = self.slots * self.slot_threads
        added = self.num_threads - first
        self.registers[:] = [np.concatenate([one, self._nothing(added, one.dtype)]) for one in self.registers]
        self.pc = np.concatenate([self.pc, np.zeros(added, np.int32)])
        self._name_threads()
        self.alive = np.concatenate([self.alive, self.in_block[first:] < self.block_threads])
        self.num_alive = int(self.alive.sum())
        self.ended = np.concatenate([self.ended, np.zeros(len(blocks), np.bool_)])

    def living(self) -> Threads:
        return ALL if self.num_alive == self.num_threads else np.flatnonzero(self.alive)

    def numbers(self, threads: Threads) -> NDArray[np.intp]:
        """The set as an array."""
        return np.arange(self.num_threads) if isinstance(threads, slice) else threads

    def first(self, threads: Threads) -> NDArray[np.intp]:
        """One of them alone."""
        return np.zeros(1, np.intp) if isinstance(threads, slice) else threads[:1]

    def count(self, threads: Threads) -> int:
        return self.num_threads if isinstance(threads, slice) else len(threads)

    def as_set(self, threads: NDArray[np.intp]) -> Threads:
        """An ascending array, as `ALL` if it holds every thread."""
        return ALL if len(threads) == self.num_threads else threads

    def where(self, threads: Threads, condition: NDArray[np.bool_]) -> Threads:
        """Those of them for which it holds. condition: one value a thread of the batch."""
        if isinstance(threads, slice):
            if condition.all():
                return ALL
            return np.flatnonzero(condition)
        return threads[condition[threads]]

    def union(self, parts: Sequence[Threads]) -> Threads:
        """Of disjoint sets."""
        if len(parts) == 1:
            return parts[0]
        arrays = [self.numbers(part) for part in parts]
        return self.as_set(np.sort(np.concatenate(arrays)))

    def without(self, threads: Threads, some: Threads) -> Threads:
        """A set, less a part of it."""
        if self.count(some) == 0:
            return threads
        if self.count(some) == self.count(threads):
            return NONE
        member = np.zeros(self.num_threads, np.bool_)
        member[threads] = True
        member[some] = False
        return np.flatnonzero(member)

    def lane_bits(self, threads: Threads) -> NDArray[np.uint32]:
        """u32 a warp: which of its lanes are in the set."""
        member = np.zeros(self.num_threads, np.bool_)
        member[threads] = True
        return pack_lanes(member)

    def exit(self, threads: Threads) -> None:
        self.alive[threads] = False
        self.num_alive = int(np.count_nonzero(self.alive))
        self.ended = np.logical_not(np.any(self.alive.reshape(self.slots, -1), axis=1))

    def block_index(self, slot: int) -> tuple[int, int, int]:
        x, y, _ = self.launch.grid
        block = int(self.blocks[slot])
        return block % x, block // x % y, block // (x * y)

    def thread_index(self, thread: int) -> tuple[int, int, int]:
        x, y, _ = self.launch.block
        number = int(self.in_block[thread])
        return number % x, number // x % y, number // (x * y)

    def describe(self, thread: int) -> str:
        """Who a thread is, in words."""
        return f"block {self.block_index(int(self.slot[thread]))} thread {self.thread_index(thread)}"


def pack_lanes(flags: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """bool [warps x 32] to u32 [warps], lane 0 in bit 0."""
    bits = np.packbits(flags.reshape(-1, WARP), axis=1, bitorder="little")
    return bits.view(np.uint32).ravel()

"""Stores to global memory that become visible late: what a hostile schedule makes of stores.

A block's stores are held back. Other blocks see them when the schedule lets them out, when a thread of the block passes
a fence or a release that reaches beyond it, or when the launch ends: in any order, but for stores to the same bytes. So
a flag may be seen before the data that it stands for, and a block may read another's place before its own store is
seen there. The block itself sees its stores in their order: what it reads, or changes by an atomic, is let out before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.memory.buffer import Buffer, Indices

Write = Callable[[Buffer, Indices, tuple[NDArray[Any], ...], int], None]  # to a buffer: offsets, values, width


@dataclass
class _Held:
    """One instruction's stores by threads of one block."""

    buffer: Buffer
    offsets: Indices
    values: tuple[NDArray[Any], ...]
    width: int
    size: int = field(init=False)  # bytes of each store
    first: int = field(init=False)
    end: int = field(init=False)
    _sorted: Indices | None = None

    def __post_init__(self) -> None:
        self.size = self.width * len(self.values)
        self.first, self.end = int(self.offsets.min()), int(self.offsets.max()) + self.size

    def overlaps(self, buffer: Buffer, offsets: Indices, size: int, first: int, end: int) -> bool:
        """Is a byte of theirs among these accesses, which lie between first and end?"""
        if self.buffer is not buffer or self.first >= end or first >= self.end:
            return False
        if self._sorted is None:
            self._sorted = np.sort(self.offsets)
        before = np.searchsorted(self._sorted, offsets - self.size, side="right")
        return bool((np.searchsorted(self._sorted, offsets + size, side="left") > before).any())


class LateStores:
    """Of all resident blocks."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._held: dict[int, list[_Held]] = {}  # by slot, oldest first
        self._spans: dict[int, tuple[int, int]] = {}  # by buffer: all that is held lies between these bytes
        self.write: Write = lambda buffer, offsets, values, width: buffer.scatter(offsets, values, width)

    def hold(
        self,
        slots: NDArray[np.int32],
        buffer: Buffer,
        offsets: Indices,
        values: Sequence[NDArray[Any]],
        width: int,
    ) -> None:
        """slots: of each thread. values: arrays [N], or scalars, which may be a register's own array."""
        whole = [np.broadcast_to(value, offsets.shape) for value in values]
        for slot, mine in _by_slot(slots):
            one = _Held(buffer, offsets[mine], tuple(value[mine].copy() for value in whole), width)
            self._held.setdefault(slot, []).append(one)
            first, end = self._spans.get(id(buffer), (one.first, one.end))
            self._spans[id(buffer)] = min(first, one.first), max(end, one.end)

    def let_out(self, slots: NDArray[np.int32]) -> None:
        """Everything of these blocks is visible from now on."""
        for slot in np.unique(slots).tolist() if self._held else ():
            if slot in self._held:
                self._let_out(slot, lambda one: True)

    def let_out_overlapping(self, slots: NDArray[np.int32], buffer: Buffer, offsets: Indices, size: int) -> None:
        """What these blocks hold back of the bytes that their threads access is visible from now on."""
        if not self._held or id(buffer) not in self._spans or not len(offsets):
            return
        first, end = self._spans[id(buffer)]
        if int(offsets.min()) >= end or int(offsets.max()) + size <= first:
            return
        for slot, mine in _by_slot(slots):
            if slot in self._held:
                part = offsets[mine]
                first, end = int(part.min()), int(part.max()) + size
                self._let_out(slot, lambda one: one.overlaps(buffer, part, size, first, end))  # noqa: B023

    def let_out_all(self) -> bool:
        """Returns whether there was anything."""
        some = bool(self._held)
        for slot in list(self._held):
            self._let_out(slot, lambda one: True)
        return some

    def let_out_some(self) -> None:
        """Any stores of any block, or nothing."""
        if not self._held or self._random.random() < 0.7:
            return
        slot = list(self._held)[int(self._random.integers(len(self._held)))]
        held = self._held[slot]
        chosen = held[int(self._random.integers(len(held)))]
        self._let_out(slot, lambda one: one is chosen)

    def _let_out(self, slot: int, is_wanted: Callable[[_Held], bool]) -> None:
        """The wanted ones, and before each what is older and goes to the same bytes."""
        going: list[_Held] = []
        staying: list[_Held] = []
        for one in reversed(self._held[slot]):
            goes = is_wanted(one) or any(
                newer.overlaps(one.buffer, one.offsets, one.size, one.first, one.end) for newer in going
            )
            (going if goes else staying).append(one)
        if staying:
            self._held[slot] = staying[::-1]
        else:
            del self._held[slot]
        for one in reversed(going):
            self.write(one.buffer, one.offsets, one.values, one.width)
        if not self._held:
            self._spans.clear()


def _by_slot(slots: NDArray[np.int32]) -> Iterator[tuple[int, slice | Indices]]:
    """Each slot, and which are its threads."""
    if (slots[1:] >= slots[:-1]).all():
        ends = [*(np.flatnonzero(np.diff(slots)) + 1).tolist(), len(slots)]
        start = 0
        for end in ends:
            if end > start:
                yield int(slots[start]), slice(start, end)
            start = end
        return
    for slot in np.unique(slots):
        yield int(slot), np.flatnonzero(slots == slot)

"""What is remembered of memory for the race check: of each place, its last write and some of the reads since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.memory.buffer import Buffer
from simulators.gpu.watch import Access, Key

Places = NDArray[np.intp]
_RECORD = np.dtype(np.complex128)  # 16 bytes that NumPy moves at once; nothing is computed with them
_OWNER_BITS, _REACH_BITS, _TIME_BITS = np.uint64(40), np.uint64(3), np.uint64(32)
_OWNER, _REACH = np.uint64((1 << 40) - 1), np.uint64(7)
_INSTRUCTION = np.uint64((1 << 29) - 1)
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))  # odd, with bits everywhere


@dataclass(frozen=True)
class Marks:
    """Of accesses [N]: who did them, at which time of theirs, by which instruction, what was written (24 bits that
    stand for it; 0: not known), and how far they reach if they are strong (0: weak). All zero: nobody."""

    words: NDArray[np.uint64]  # [N, 2]

    @staticmethod
    def of(
        threads: NDArray[np.int64], times: NDArray[np.int32], instruction: int, reach: int, values: NDArray[np.uint64]
    ) -> Marks:
        """threads: their numbers. values: one an access, or one for all."""
        words = np.empty((len(threads), 2), np.uint64)
        words[:, 0] = threads + 1
        if values.any():
            words[:, 0] |= values << _OWNER_BITS
        low = np.uint64(instruction << 3 | reach)
        words[:, 1] = times.astype(np.uint64) << _TIME_BITS | low
        return Marks(words)

    def __getitem__(self, which: NDArray[np.intp]) -> Marks:
        return Marks.of_records(self.records.take(which))

    @staticmethod
    def of_records(records: NDArray[np.complex128]) -> Marks:
        return Marks(records.view(np.uint64).reshape(-1, 2))

    @property
    def records(self) -> NDArray[np.complex128]:
        return self.words.view(_RECORD)[:, 0]

    @property
    def exist(self) -> NDArray[np.bool_]:
        return self.words[:, 0] != 0

    @property
    def threads(self) -> NDArray[np.int64]:
        """-1: nobody."""
        return (self.words[:, 0] & _OWNER).view(np.int64) - 1

    @property
    def values(self) -> NDArray[np.uint64]:
        return self.words[:, 0] >> _OWNER_BITS

    @property
    def times(self) -> NDArray[np.int64]:
        return (self.words[:, 1] >> _TIME_BITS).view(np.int64)

    @property
    def instructions(self) -> NDArray[np.int64]:
        return (self.words[:, 1] >> _REACH_BITS & _INSTRUCTION).view(np.int64)

    @property
    def reaches(self) -> NDArray[np.int64]:
        return (self.words[:, 1] & _REACH).view(np.int64)


class Kept:
    """One mark of each place."""

    def __init__(self, places: int) -> None:
        self._records = np.zeros(places, _RECORD)  # what nobody accesses takes no memory

    def at(self, places: Places) -> Marks:
        return Marks.of_records(self._records.take(places))

    def put(self, places: Places, marks: Marks) -> None:
        """Of several at one place, the last is kept."""
        self._records[places] = marks.records

    def clear(self, places: Places) -> None:
        self._records[places] = 0

    def extend(self, places: int) -> None:
        self._records = np.concatenate([self._records, np.zeros(places - len(self._records), _RECORD)])

    def split(self, factor: int) -> None:
        before = self._records
        self._records = np.zeros(len(before) * factor, _RECORD)
        marked = np.flatnonzero(before.view(np.uint64)[::2])
        for i in range(factor):
            self._records[marked * factor + i] = before[marked]


class Shadow:
    """Of one buffer, in places of as many bytes as the smallest access so far. Of the reads since the last write it
    keeps the latest, and two that are not ordered before it."""

    def __init__(self, size: int, granule: int) -> None:
        """size: bytes of the buffer. granule: of a place."""
        self.size = size
        self.granule = granule
        self.write, self.latest, self.first, self.other = (Kept(size // granule) for _ in range(4))
        self._chosen = np.empty(0, np.intp)

    @property
    def reads(self) -> tuple[Kept, Kept, Kept]:
        return self.latest, self.first, self.other

    def _all(self) -> Iterator[Kept]:
        yield from (self.write, *self.reads)

    def extend(self, size: int) -> None:
        """The buffer is longer."""
        for kept in self._all():
            kept.extend(size // self.granule)
        self.size = size

    def split(self, granule: int) -> None:
        """Each place becomes several."""
        for kept in self._all():
            kept.split(self.granule // granule)
        self.granule = granule

    def last_of_each(self, places: Places) -> NDArray[np.intp]:
        """Which of these are the last ones at their places, ascending."""
        if len(self._chosen) != self.size // self.granule:
            self._chosen = np.empty(self.size // self.granule, np.intp)
        numbers = np.arange(len(places))
        self._chosen[places] = numbers
        return np.flatnonzero(self._chosen[places] == numbers)


class Shadows:
    """Of all buffers, by what names them."""

    def __init__(self) -> None:
        self._shadows: dict[Key, Shadow] = {}
        self._held: list[Buffer] = []  # so that their ids stay their own

    def forget(self, buffer: Key) -> None:
        self._shadows.pop(buffer, None)

    def of(self, access: Access, buffer: Key) -> Shadow:
        """That of the buffer, whose places are as small as this access."""
        size = len(access.buffer.bytes)
        if buffer not in self._shadows:
            self._shadows[buffer] = Shadow(size, access.size)
            self._held.append(access.buffer)
        shadow = self._shadows[buffer]
        if access.size < shadow.granule:
            shadow.split(access.size)
        if size > shadow.size:
            shadow.extend(size)
        return shadow


def values_of(access: Access, granule: int, per_access: int) -> NDArray[np.uint64]:
    """24 bits for what is written to each place of an access, place after place; 0 where it is not known."""
    count = len(access.values)
    if access.kind != "write" or not count:
        return np.zeros(1, np.uint64)
    dtype: np.dtype[Any] = np.asarray(access.values[0]).dtype
    table = np.empty((len(access.threads), count), dtype)
    for i, value in enumerate(access.values):
        table[:, i] = value
    if access.completion is not None:  # what is written is not known by place
        mixed = _mixed(table.astype(np.uint64)).repeat(per_access)
        mixed ^= np.tile(np.arange(per_access, dtype=np.uint64), len(table)) * _MIX[0]
        return mixed >> _OWNER_BITS | np.uint64(1)
    unit = min(granule, 8)
    units = table.view(np.dtype(f"u{unit}")).reshape(len(access.threads) * per_access, -1).astype(np.uint64)
    return _mixed(units) >> _OWNER_BITS | np.uint64(1)


def _mixed(units: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Rows to numbers."""
    mixed = units[:, 0] * _MIX[0]
    for i in range(1, units.shape[1]):
        mixed ^= (units[:, i] + np.uint64(i)) * _MIX[1]
    return mixed

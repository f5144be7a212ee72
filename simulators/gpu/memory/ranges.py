"""Ranges of addresses that do not overlap, found by address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.memory.buffer import Indices


class Range(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def end(self) -> int: ...


R = TypeVar("R", bound=Range)


class Ranges(Generic[R]):
    """In the order of their addresses."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[R] = []

    def __iter__(self) -> Iterator[R]:
        return iter(self._ranges)

    def add(self, one: R) -> None:
        """Its caller has asked whether it overlaps another."""
        index = bisect_right(self._starts, one.address)
        self._starts.insert(index, one.address)
        self._ranges.insert(index, one)

    def remove(self, one: R) -> None:
        index = self._starts.index(one.address)
        del self._starts[index], self._ranges[index]

    def overlapping(self, address: int, size: int) -> R | None:
        """One that has some of the bytes there."""
        index = bisect_right(self._starts, address)
        for other in self._ranges[max(index - 1, 0) : index + 1]:
            if other.address < address + size and address < other.end:
                return other
        return None

    def before(self, address: int) -> R | None:
        """The last one that does not begin after it."""
        index = bisect_right(self._starts, address) - 1
        return self._ranges[index] if index >= 0 else None

    def find(self, address: int, size: int = 1) -> R | None:
        """The one that holds all of `size` bytes there."""
        near = self.before(address)
        return near if near is not None and address + size <= near.end else None

    def split(self, addresses: NDArray[np.uint64], size: int) -> Iterator[tuple[Indices | None, R | None]]:
        """Which of the accesses go to which range: pairs of (which, or None for all; range, or None where there is
        none)."""
        if addresses.size == 0:
            return
        found = self.find(int(addresses.min()), size)
        if found is not None and int(addresses.max()) + size <= found.end:
            yield None, found
            return
        index = np.searchsorted(np.array(self._starts, np.uint64), addresses, side="right") - 1
        for one in np.unique(index):
            which = np.flatnonzero(index == one)
            if one < 0:
                yield which, None
                continue
            found = self._ranges[one]
            outside = addresses[which] > np.uint64(max(found.end - size, 0))
            if outside.any():
                yield which[outside], None
            if not outside.all():
                yield which[~outside], found

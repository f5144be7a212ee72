"""Global memory: allocations at addresses that the host chose.

An allocation is a piece of the host's own memory under its own address, so that nothing is copied and pointers within
a launch's parameters mean what they meant to the host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.memory.buffer import LINE, Buffer, Indices


@dataclass
class Allocation:
    """Bytes that kernels may touch."""

    name: str
    address: int
    size: int
    buffer: Buffer = field(init=False, repr=False)
    origin: int = field(init=False)  # the address of the buffer's first byte: `address`, rounded down
    written: NDArray[np.bool_] | None = field(default=None, repr=False)  # by byte of the buffer; None: all hold values

    def __post_init__(self) -> None:
        self.origin = self.address // LINE * LINE
        self.buffer = Buffer.at(self.origin, self.address + self.size - self.origin)

    @property
    def start(self) -> int:
        """The offset of its first byte in the buffer."""
        return self.address - self.origin

    @property
    def end(self) -> int:
        return self.address + self.size


class GlobalMemory:
    """All allocations of one GPU."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._allocations: list[Allocation] = []

    def add(self, address: int, size: int, name: str, *, is_initialized: bool = True) -> Allocation:
        """Errors: ValueError if it is empty, or overlaps another."""
        if size <= 0:
            raise ValueError(f"allocation {name!r} has {size} bytes; it must have some")
        allocation = Allocation(name, address, size)
        if not is_initialized:
            allocation.written = np.zeros(len(allocation.buffer.bytes), np.bool_)
        index = bisect_right(self._starts, address)
        for other in self._allocations[max(index - 1, 0) : index + 1]:
            if other.address < allocation.end and address < other.end:
                raise ValueError(f"allocation {name!r} at {address:#x} overlaps {other.name!r} at {other.address:#x}")
        self._starts.insert(index, address)
        self._allocations.insert(index, allocation)
        return allocation

    def add_array(self, array: NDArray[np.generic], name: str, *, is_initialized: bool = True) -> Allocation:
        """A contiguous NumPy array, which must outlive the allocation."""
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError(f"array {name!r} is not contiguous; add the array that it is a view of")
        return self.add(array.ctypes.data, array.nbytes, name, is_initialized=is_initialized)

    def remove(self, address: int) -> None:
        """Errors: KeyError if no allocation begins there."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or self._starts[index] != address:
            raise KeyError(f"no allocation begins at {address:#x}")
        del self._starts[index], self._allocations[index]

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._allocations)

    def find(self, address: int, size: int = 1) -> Allocation | None:
        """The one that holds all of `size` bytes there."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and address + size <= self._allocations[index].end:
            return self._allocations[index]
        return None

    def split(self, addresses: NDArray[np.uint64], size: int) -> Iterator[tuple[Indices | None, Allocation | None]]:
        """Which of the accesses go to which allocation: pairs of (which, or None for all; allocation, or None where
        there is none)."""
        if addresses.size == 0:
            return
        allocation = self.find(int(addresses.min()), size)
        if allocation is not None and int(addresses.max()) + size <= allocation.end:
            yield None, allocation
            return
        index = np.searchsorted(np.array(self._starts, np.uint64), addresses, side="right") - 1
        for one in np.unique(index):
            which = np.flatnonzero(index == one)
            if one < 0:
                yield which, None
                continue
            allocation = self._allocations[one]
            outside = addresses[which] > np.uint64(max(allocation.end - size, 0))
            if outside.any():
                yield which[outside], None
            if not outside.all():
                yield which[~outside], allocation

    def describe(self, address: int) -> str:
        """In words, for messages."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return f"{address:#x}, which is before every allocation"
        near = self._allocations[index]
        offset = address - near.address
        if offset < near.size:
            return f"byte {offset} of {near.name!r} ({near.size} bytes)"
        return f"{address:#x}, which is {address - near.end} bytes past the end of {near.name!r} ({near.size} bytes)"

"""Global memory: allocations at addresses that the host chose, and multicast windows onto them.

An allocation is a piece of the host's own memory under its own address, so that nothing is copied and pointers within
a launch's parameters mean what they meant to the host. A multicast window is addresses alone: what `multimem` does
there is done at the same place of each of its replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.memory.buffer import LINE, Buffer, Indices
from simulators.gpu.memory.ranges import Ranges

MULTICAST_BYTES = 16  # of an access through a multicast window, at most


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


@dataclass(frozen=True)
class Multicast:
    """A range of addresses that stands for a range of each of several allocations."""

    name: str
    address: int
    size: int
    replicas: tuple[tuple[Allocation, int], ...]  # and where each range begins, an address

    @property
    def end(self) -> int:
        return self.address + self.size


class GlobalMemory:
    """All allocations of one GPU."""

    def __init__(self) -> None:
        self._allocations: Ranges[Allocation] = Ranges()
        self._multicasts: Ranges[Multicast] = Ranges()

    def add(self, address: int, size: int, name: str, *, is_initialized: bool = True) -> Allocation:
        """Errors: ValueError if it is empty, or overlaps another."""
        self._check_free("allocation", address, size, name)
        allocation = Allocation(name, address, size)
        if not is_initialized:
            allocation.written = np.zeros(len(allocation.buffer.bytes), np.bool_)
        self._allocations.add(allocation)
        return allocation

    def add_array(self, array: NDArray[np.generic], name: str, *, is_initialized: bool = True) -> Allocation:
        """A contiguous NumPy array, which must outlive the allocation."""
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError(f"array {name!r} is not contiguous; add the array that it is a view of")
        return self.add(array.ctypes.data, array.nbytes, name, is_initialized=is_initialized)

    def add_multicast(self, address: int, size: int, replicas: Sequence[int], name: str) -> Multicast:
        """A window of addresses, which no memory has, for `multimem`. replicas: where each range begins, within an
        allocation.

        Errors: ValueError if the window is empty or overlaps anything; if there is no replica, or one is not within an
        allocation, overlaps another, or differs from the window in its address modulo 16, as no aligned access could.
        """
        self._check_free("multicast window", address, size, name)
        if not replicas:
            raise ValueError(f"multicast window {name!r} has no replica")
        ordered = sorted(replicas)
        if any(second < first + size for first, second in pairwise(ordered)):
            raise ValueError(f"replicas of multicast window {name!r} overlap")
        found = []
        for replica in replicas:
            allocation = self._allocations.find(replica, size)
            if allocation is None:
                where = self.describe(replica)
                raise ValueError(
                    f"replica of multicast window {name!r}: {size} bytes at {where}, are not within an allocation"
                )
            if (replica - address) % MULTICAST_BYTES:
                raise ValueError(f"replica {replica:#x} of multicast window {name!r} is not aligned as {address:#x} is")
            found.append((allocation, replica))
        window = Multicast(name, address, size, tuple(found))
        self._multicasts.add(window)
        return window

    def _check_free(self, kind: str, address: int, size: int, name: str) -> None:
        if size <= 0:
            raise ValueError(f"{kind} {name!r} has {size} bytes; it must have some")
        other = self._allocations.overlapping(address, size) or self._multicasts.overlapping(address, size)
        if other is not None:
            raise ValueError(f"{kind} {name!r} at {address:#x} overlaps {other.name!r} at {other.address:#x}")

    def note_written(self, address: int, size: int) -> None:
        """These bytes of one allocation hold values from now on: the host has written them."""
        allocation = self.find(address, size)
        if allocation is None:
            raise ValueError(f"{size} bytes at {address:#x} are not within an allocation")
        if allocation.written is not None:
            first = address - allocation.origin
            allocation.written[first : first + size] = True

    def remove(self, address: int) -> None:
        """An allocation or a multicast window. Errors: KeyError if none begins there; ValueError if it is a replica of
        a window that is left."""
        window = self._multicasts.before(address)
        if window is not None and window.address == address:
            self._multicasts.remove(window)
            return
        allocation = self._allocations.before(address)
        if allocation is None or allocation.address != address:
            raise KeyError(f"no allocation begins at {address:#x}")
        for one in self._multicasts:
            if any(replica is allocation for replica, _ in one.replicas):
                raise ValueError(f"allocation {allocation.name!r} is a replica of multicast window {one.name!r}")
        self._allocations.remove(allocation)

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._allocations)

    def find(self, address: int, size: int = 1) -> Allocation | None:
        """The one that holds all of `size` bytes there."""
        return self._allocations.find(address, size)

    def split(self, addresses: NDArray[np.uint64], size: int) -> Iterator[tuple[Indices | None, Allocation | None]]:
        """Which of the accesses go to which allocation: pairs of (which, or None for all; allocation, or None where
        there is none)."""
        return self._allocations.split(addresses, size)

    def split_multicast(
        self, addresses: NDArray[np.uint64], size: int
    ) -> Iterator[tuple[Indices | None, Multicast | None]]:
        """As `split`, by multicast window."""
        return self._multicasts.split(addresses, size)

    def describe(self, address: int) -> str:
        """In words, for messages."""
        window, allocation = self._multicasts.before(address), self._allocations.before(address)
        if window is not None and address < window.end:
            return (
                f"byte {address - window.address} of {window.name!r}, a multicast window ({window.size} bytes) that is "
                "for multimem alone"
            )
        near = max((one for one in (window, allocation) if one is not None), key=lambda one: one.end, default=None)
        if near is None:
            return f"{address:#x}, which is before every allocation"
        offset = address - near.address
        if offset < near.size:
            return f"byte {offset} of {near.name!r} ({near.size} bytes)"
        return f"{address:#x}, which is {address - near.end} bytes past the end of {near.name!r} ({near.size} bytes)"

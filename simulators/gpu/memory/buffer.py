"""Bytes that many threads read and write at once, at any width."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.numbers.arrays import B128

Array = NDArray[np.generic]
Bits = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.uint64]
Indices = NDArray[np.intp]

UNSIGNED: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: B128}
LINE = 128  # every buffer begins and ends at a multiple of it, so that rows of any access divide it


class Buffer:
    """Consecutive bytes. An offset is that of an access's first byte, and a multiple of the access's bytes."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        """memory: a multiple of LINE bytes."""
        self.bytes = memory
        self._views: dict[tuple[int, int], NDArray[np.generic]] = {}

    @staticmethod
    def of_size(size: int) -> Buffer:
        return Buffer(np.zeros(-(-size // LINE) * LINE, np.uint8))

    @staticmethod
    def at(address: int, size: int) -> Buffer:
        """The host's own memory, from an address that is a multiple of LINE on."""
        whole = (ctypes.c_uint8 * (-(-size // LINE) * LINE)).from_address(address)
        return Buffer(np.frombuffer(whole, np.uint8))

    def view(self, width: int, count: int = 1) -> NDArray[np.generic]:
        """Elements of `width` bytes; rows of `count` of them, if more than one."""
        key = width, count
        if key not in self._views:
            flat = self.bytes.view(UNSIGNED[width])
            self._views[key] = flat if count == 1 else flat.reshape(-1, count)
        return self._views[key]

    def gather(self, offsets: Indices, width: int, count: int) -> tuple[Array, ...]:
        """Offsets [N] to `count` new arrays [N]."""
        found = self.view(width, count)[offsets // (width * count)]
        return (found,) if count == 1 else tuple(np.ascontiguousarray(found.T))

    def scatter(self, offsets: Indices, values: tuple[Array, ...], width: int) -> None:
        """Where two threads write to one place, the later one in the arrays wins."""
        count = len(values)
        rows = offsets // (width * count)
        if count == 1:
            self.view(width)[rows] = values[0]
        else:
            view = self.view(width, count)
            for i, value in enumerate(values):
                view[rows, i] = value

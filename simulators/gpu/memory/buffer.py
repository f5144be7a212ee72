"""Bytes that many threads read and write at once, at any width."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.numbers.arrays import B128

Array = NDArray[np.generic]
Bits = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.uint64]
Indices = NDArray[np.intp]

UNSIGNED: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: B128}
# What is moved and not computed with, by bytes: of 16, whatever NumPy moves at once.
_MOVED: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype(np.complex128)}
_PIECE = 1 << 16  # bytes of a temporary: larger ones come fresh from the system, page by page
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
        return Buffer(np.ctypeslib.as_array(whole))

    def view(self, width: int, count: int = 1) -> NDArray[np.generic]:
        """Elements of `width` bytes; rows of `count` of them, if more than one."""
        key = width, count
        if key not in self._views:
            flat = self.bytes.view(UNSIGNED[width])
            self._views[key] = flat if count == 1 else flat.reshape(-1, count)
        return self._views[key]

    def gather(self, offsets: Indices, width: int, count: int) -> tuple[Array, ...]:
        """Offsets [N] to `count` new arrays [N]."""
        view, rows = self.view(width, count), _rows(offsets, width * count)
        if count == 1:
            return (view.take(rows),)
        if len(rows) * width * count <= _PIECE:
            return tuple(np.ascontiguousarray(view.take(rows, axis=0).T))
        found = tuple(np.empty(len(rows), view.dtype) for _ in range(count))
        for piece in _pieces(len(rows), width * count):
            part = view.take(rows[piece], axis=0)
            for i, column in enumerate(found):
                column[piece] = part[:, i]
        return found

    def scatter(self, offsets: Indices, values: tuple[Array, ...], width: int) -> None:
        """Where two threads write to one place, the later one in the arrays wins."""
        count = len(values)
        size = width * count
        if count == 1:
            self.view(width)[_rows(offsets, width)] = values[0]
            return
        unit = min(size, 16)
        moved, rows = self.bytes.view(_MOVED[unit]), _rows(offsets, unit)
        for piece in _pieces(len(rows), size):
            part = np.empty((len(rows[piece]), count), UNSIGNED[width])
            for i, value in enumerate(values):
                part[:, i] = value if np.ndim(value) == 0 else value[piece]
            units = part.view(_MOVED[unit])
            for i in range(size // unit):
                moved[rows[piece] + i] = units[:, i]


def mark(flags: NDArray[np.bool_], offsets: Indices, size: int) -> None:
    """Set the flags of all bytes of accesses of so many bytes. flags: one a byte of a buffer."""
    moved, rows, whole = _flags(flags, offsets, size)
    for i in range(max(size // 16, 1)):
        moved[rows + i] = whole


def are_marked(flags: NDArray[np.bool_], offsets: Indices, size: int) -> NDArray[np.bool_]:
    """For each access, are the flags of all its bytes set?"""
    moved, rows, whole = _flags(flags, offsets, size)
    found = moved.take(rows) == whole
    for i in range(1, size // 16):
        found &= moved.take(rows + i) == whole
    return found


def _flags(flags: NDArray[np.bool_], offsets: Indices, size: int) -> tuple[NDArray[Any], Indices, Any]:
    """The flags of up to 16 bytes as one, where those of each access begin, and what they are when they are set."""
    unit = min(size, 16)
    return flags.view(_MOVED[unit]), _rows(offsets, unit), np.frombuffer(b"\1" * unit, _MOVED[unit])[0]


def _rows(offsets: Indices, size: int) -> Indices:
    """offsets // size, of a power of two."""
    return offsets >> (size.bit_length() - 1)


def _pieces(count: int, size: int) -> Iterator[slice]:
    step = _PIECE // size
    return (slice(start, start + step) for start in range(0, count, step))

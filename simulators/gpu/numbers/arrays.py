"""How values of a width are held: unsigned NumPy arrays, seen as signed integers or floats, cut into lanes.

Arrays are seen, not converted, so a view of an operand must never be a result.
Lanes lie as on the chip: the first one in the lowest bits. NumPy's view gives that order on little-endian machines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# 128 bits are no number: halves that move together. One element a thread, as everywhere.
B128 = np.dtype([("low", np.uint64), ("high", np.uint64)])
UNSIGNED: dict[int, type] = {1: np.bool_, 8: np.uint16, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, type] = {8: np.int16, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT: dict[int, type] = {32: np.float32, 64: np.float64}
CHUNK = 8192  # elements whose float64 temporaries stay in a core's cache


def width_of(bits: Any) -> int:
    """Bits of an element: 16, 32 or 64."""
    return 8 * bits.dtype.itemsize


def unsigned(width: int, values: Any) -> Any:
    """Values of any integer kind, cut or extended to the array type of a width. Always a new array."""
    return values.astype(UNSIGNED[width])


def as_signed(bits: Any) -> Any:
    return bits.view(SIGNED[width_of(bits)])


def as_unsigned(values: Any) -> Any:
    return values.view(UNSIGNED[width_of(values)])


def as_float(bits: Any) -> Any:
    """Bits of f32 or f64 as floats."""
    return bits.view(FLOAT[width_of(bits)])


def select(condition: Any, if_true: Any, if_false: Any) -> Any:
    """np.where on unsigned arrays by masks: no branch an element, which costs several times as much."""
    mask = np.negative(condition.astype(if_true.dtype))
    return if_false ^ ((if_true ^ if_false) & mask)


def split(bits: Any, lane: int) -> Any:
    """(...) of 32 or 64 bits -> (..., lanes) of `lane` bits."""
    whole = np.ascontiguousarray(bits)
    return whole.view(UNSIGNED[lane]).reshape(*whole.shape, -1)


def join(lanes: Any, width: int) -> Any:
    """(..., lanes) of bits -> (...) of `width` bits."""
    return np.ascontiguousarray(lanes).view(UNSIGNED[width])[..., 0]


def by_lanes(function: Callable[..., Any], lane: int, width: int) -> Callable[..., Any]:
    """A function of elements of `lane` bits, made one of registers of `width` bits that hold several."""

    def packed(*operands: Any) -> Any:
        return join(function(*(split(bits, lane) for bits in operands)), width)

    return packed


def in_chunks(function: Callable[..., Any], dtype: type) -> Callable[..., Any]:
    """An elementwise function with large temporaries, run over pieces of its operands. Its result is of `dtype`."""

    def chunked(*operands: Any) -> Any:
        if max(map(np.size, operands)) <= CHUNK:
            return function(*operands)
        arrays = np.broadcast_arrays(*operands)
        flat = [array.reshape(-1) for array in arrays]
        result: Any = np.empty(flat[0].size, dtype)
        for start in range(0, result.size, CHUNK):
            piece = slice(start, start + CHUNK)
            result[piece] = function(*(array[piece] for array in flat))
        return result.reshape(arrays[0].shape)

    return chunked

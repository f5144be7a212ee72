"""f16 and bf16 as float32 and back, in few passes of whole numbers: every kernel that loads activations does this."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import as_float, as_unsigned, select
from simulators.gpu.numbers.formats import FORMATS, encode
from simulators.gpu.numbers.nan import F32, HALF, has_nan

F16_INFINITY = np.uint16(0x7C00)
WORD = np.uint32


def f16_to_float32(bits: Any) -> Any:
    """Exact. A NaN becomes that of f32."""
    magnitude = bits & np.uint16(0x7FFF)
    wide = (magnitude.astype(WORD) << WORD(13)).view(np.float32) * np.float32(2.0**112)  # denormals come right too
    result = as_unsigned(wide)
    is_special = magnitude >= F16_INFINITY
    if is_special.any():
        infinity_or_nan = select(magnitude > F16_INFINITY, F32, WORD(0x7F800000))
        result = select(is_special, infinity_or_nan, result)
        sign = (bits & np.uint16(0x8000)) * (magnitude <= F16_INFINITY)
        return as_float(result | (sign.astype(WORD) << WORD(16)))
    return as_float(result | ((bits & np.uint16(0x8000)).astype(WORD) << WORD(16)))


def bf16_to_float32(bits: Any) -> Any:
    """Exact: the upper half of an f32. A NaN keeps its payload."""
    return as_float(bits.astype(WORD) << WORD(16))


def f16_of_float32(values: Any) -> Any:
    """To nearest, ties to even, as bits."""
    bits = as_unsigned(values)
    magnitude = bits & WORD(0x7FFFFFFF)
    half = magnitude + WORD(0xC8000FFF) + ((magnitude >> WORD(13)) & WORD(1))  # moves the bias, adds half a unit
    result = np.asarray((half >> WORD(13)).astype(np.uint16))
    is_tiny = magnitude < WORD(0x38800000)  # below 2^-14: adding 0.5 rounds to units of 2^-24
    if is_tiny.any():
        small = as_unsigned(as_float(magnitude) + np.float32(0.5)) - WORD(0x3F000000)
        result = select(is_tiny, small.astype(np.uint16), result)
    is_large = magnitude >= WORD(0x477FF000)  # 65520 rounds to infinity
    if is_large.any():
        is_nan = magnitude > WORD(0x7F800000)
        result = select(is_large, select(is_nan, HALF, F16_INFINITY), result)
        bits = select(is_nan, WORD(0), bits)
    return result | (bits >> WORD(16)).astype(np.uint16) & np.uint16(0x8000)


def bf16_rounded(values: Any) -> Any:
    """float32 to nearest bf16, ties to even, as uint32 whose upper half it is; the lower half is not cleared."""
    bits = as_unsigned(values)
    result = bits + (((bits >> WORD(16)) & WORD(1)) + WORD(0x7FFF))
    if has_nan(values):
        result = select(np.isnan(values), WORD(HALF) << WORD(16), result)
    return result


def bf16_of_float32(values: Any) -> Any:
    """To nearest, ties to even, as bits."""
    return (bf16_rounded(values) >> WORD(16)).astype(np.uint16)


TO_FLOAT32 = {"f16": f16_to_float32, "bf16": bf16_to_float32}
OF_FLOAT32 = {"f16": f16_of_float32, "bf16": bf16_of_float32}


def of_odd(values: Any, name: str) -> Any:
    """float64, exact or rounded to odd, to nearest f16 or bf16, as bits: by way of float32, rounded to odd again."""
    nearest = values.astype(np.float32)
    wide = nearest.astype(np.float64)
    bits = as_unsigned(nearest) - (np.abs(wide) > np.abs(values))
    return OF_FLOAT32[name](as_float(bits | (wide != values)))


def of_float64(values: Any, name: str, mode: str, is_finite: bool = False) -> Any:
    """float64, exact or rounded to odd, to f16 or bf16 in any direction, as bits."""
    return encode(values, FORMATS[name], mode, is_finite).astype(np.uint16)

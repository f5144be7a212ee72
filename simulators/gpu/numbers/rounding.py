"""Rounding of f32 and f64: sums and products whose error is known, and the four directions of PTX.

"rn" is to nearest, ties to even; "rz" to zero; "rm" down; "rp" up (PTX ISA, floating-point rounding modifiers).
A result that is to be rounded once is first rounded to odd in float64: truncated, and its last bit set if anything was
lost. A second rounding to 51 bits or fewer is then the right one in every direction (Boldo and Melquiond 2005).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import as_float, as_unsigned, in_chunks, select, width_of

MODES = ("rn", "rz", "rm", "rp")
LEAST_NORMAL = np.float32(2.0**-126)
TWICE_LEAST_NORMAL = np.uint32(0x01000000)  # of its bits
TOP: dict[int, Any] = {32: np.uint32(1 << 31), 64: np.uint64(1 << 63)}  # the sign
TIE = np.uint64(1 << 63)  # half a unit of f32, when the rest of a float64 is shifted to the top
NOT_F32 = np.uint64(64 - 29)


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b to nearest, and its error, exact unless the sum overflows (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def stepped(values: Any, is_wrong: Any, mode: str) -> Any:
    """Values rounded to nearest, moved by one unit where that went to the wrong side. Bits in, bits out."""
    one = values.dtype.type(1)
    step = is_wrong.astype(values.dtype)
    if mode == "rz":
        return values - step
    top = values.dtype.type(width_of(values) - 1)
    is_outward = (values >> top) if mode == "rm" else (values >> top) ^ one  # away from zero is the way to go
    return values + step * (is_outward + is_outward - one)


def odd_sum(a: Any, b: Any) -> Any:
    """a + b of float64, rounded to odd. Infinities and NaN as in a sum to nearest."""
    total, error = two_sum(a, b)
    bits = as_unsigned(total)
    one, sign = np.uint64(1), np.uint64(63)
    is_even = ((error != 0) & ~np.isnan(error)).astype(np.uint64) & ~bits
    toward = ((as_unsigned(error) ^ bits) >> sign) << one  # 0: away from zero, 2: to zero
    return as_float(bits + is_even * (one - toward))


def with_zero_of(total: Any, a: Any, b: Any, mode: str) -> Any:
    """A sum that is exactly zero is -0 when rounded down, unless both terms are +0."""
    if mode != "rm":
        return total
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)


def float32_of(values: Any, mode: str) -> Any:
    """float64, exact or rounded to odd, to float32."""
    nearest = values.astype(np.float32)
    if mode == "rn":
        return nearest
    if mode == "rz":
        is_wrong = np.abs(nearest) > np.abs(values)
    else:
        is_wrong = nearest > values if mode == "rm" else nearest < values
    return as_float(stepped(as_unsigned(nearest), is_wrong, mode))


def add_float64(a: Any, b: Any, mode: str) -> Any:
    """a + b of float64 in any direction."""
    if mode == "rn":
        return a + b
    total, error = two_sum(a, b)
    has_overflown = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
    error = np.where(has_overflown, -total, error)
    if mode == "rz":
        error = error * np.sign(total)
    is_wrong = error > 0 if mode == "rp" else error < 0
    return with_zero_of(as_float(stepped(as_unsigned(total), is_wrong, mode)), a, b, mode)


def add_float32(a: Any, b: Any, mode: str) -> Any:
    """a + b of float32 in any direction."""
    if mode == "rn":
        return a + b
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float32_of(with_zero_of(odd_sum(a, b), a, b, mode), mode)


def mul_float32(a: Any, b: Any, mode: str) -> Any:
    """a * b of float32 in any direction: the product fits float64."""
    return a * b if mode == "rn" else float32_of(np.multiply(a, b, dtype=np.float64), mode)


def _fma_nearest(a: Any, b: Any, c: Any) -> Any:
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    result = np.asarray(total.astype(np.float32))
    # To nearest twice is wrong only where the first rounding made a tie of the second, or the second has fewer bits.
    doubtful = (as_unsigned(total) << NOT_F32) == TIE
    # A result of zero is right: then the sum is exact, for its terms cancel, or c is zero.
    twice = as_unsigned(result) << np.uint32(1)
    doubtful |= (twice - np.uint32(1)) < TWICE_LEAST_NORMAL
    if doubtful.any():
        product, c = (np.broadcast_to(term, result.shape)[doubtful] for term in (product, c))
        result[doubtful] = odd_sum(product, c).astype(np.float32)
    return result


_fma_nearest_in_chunks = in_chunks(_fma_nearest, np.float32)


def fma_odd(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32, rounded to odd in float64."""
    return odd_sum(np.multiply(a, b, dtype=np.float64), c.astype(np.float64))


def fma_float32(a: Any, b: Any, c: Any, mode: str) -> Any:
    """a * b + c of float32, rounded once: the product fits float64, the sum is rounded to odd."""
    if mode == "rn":
        return _fma_nearest_in_chunks(a, b, c)
    product, c = np.multiply(a, b, dtype=np.float64), c.astype(np.float64)
    return float32_of(with_zero_of(odd_sum(product, c), product, c, mode), mode)


def flush(bits: Any) -> Any:
    """f32 denormals to zeros of their sign (.ftz), as bits."""
    one = np.uint32(1)
    is_denormal = ((bits + bits) - one) < np.uint32(0x00FFFFFF)
    return select(is_denormal, bits & TOP[32], bits) if is_denormal.any() else bits


def saturate(bits: Any) -> Any:
    """f32 or f64 clamped to [+0, 1], NaN to +0 (.sat), as bits."""
    values = as_float(bits)
    zero, one = values.dtype.type(0), values.dtype.type(1)
    return as_unsigned(np.where(values > zero, np.minimum(values, one), zero))

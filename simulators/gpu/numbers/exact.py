"""f64 fma in any direction, and products, quotients and roots of f64 in directions that NumPy does not round in.

To nearest, fma is an error-free transformation; where that could overflow or underflow, and for the other directions,
whole numbers of any size are used, one thread after the other: slow, but such code is rare.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import as_float, as_unsigned, in_chunks
from simulators.gpu.numbers.rounding import odd_sum, two_sum

SPLITTER = 134217729.0  # 2^27 + 1
MAGNITUDE = (1 << 63) - 1
INFINITY = 0x7FF << 52


def _whole(bits: int) -> tuple[int, int]:
    """A finite f64 as mantissa and exponent: mantissa * 2^exponent."""
    exponent, fraction = (bits >> 52) & 0x7FF, bits & ((1 << 52) - 1)
    mantissa = fraction | (1 << 52) if exponent else fraction
    return (-mantissa if bits >> 63 else mantissa), max(exponent, 1) - 1075


def _rounded(mantissa: int, exponent: int, is_inexact: bool, mode: str) -> int:
    """mantissa * 2^exponent, plus a rest below one unit of the mantissa if inexact, as f64 bits."""
    is_negative, mantissa = mantissa < 0, 4 * abs(mantissa) + is_inexact
    exponent -= 2
    drop = max(mantissa.bit_length() - 53, -1074 - exponent)
    if drop <= 0:
        kept, rest, half = mantissa << -drop, 0, 1
    else:
        kept, rest, half = mantissa >> drop, mantissa & ((1 << drop) - 1), 1 << (drop - 1)
    if mode == "rn":
        kept += rest > half or (rest == half and kept & 1)
    elif rest and mode != "rz":
        kept += (mode == "rm") == is_negative
    exponent += drop
    bits = kept + ((exponent + 1074) << 52)  # a mantissa of 53 bits adds one to the exponent's field
    if bits >= INFINITY:
        keeps_finite = mode == "rz" or (mode == "rm" and not is_negative) or (mode == "rp" and is_negative)
        bits = INFINITY - 1 if keeps_finite else INFINITY
    return bits | (is_negative << 63)


def _fma(a: int, b: int, c: int, mode: str) -> int:
    (a_whole, a_exponent), (b_whole, b_exponent), (c_whole, c_exponent) = _whole(a), _whole(b), _whole(c)
    exponent = min(a_exponent + b_exponent, c_exponent)
    total = (a_whole * b_whole << (a_exponent + b_exponent - exponent)) + (c_whole << (c_exponent - exponent))
    if total:
        return _rounded(total, exponent, False, mode)
    product_sign, sign = (a ^ b) >> 63, c >> 63
    is_negative = product_sign if product_sign == sign else mode == "rm"
    return is_negative << 63


def _mul(a: int, b: int, mode: str) -> int:
    (a_whole, a_exponent), (b_whole, b_exponent) = _whole(a), _whole(b)
    if not a_whole * b_whole:
        return ((a ^ b) >> 63) << 63
    return _rounded(a_whole * b_whole, a_exponent + b_exponent, False, mode)


def _div(a: int, b: int, mode: str) -> int:
    (a_whole, a_exponent), (b_whole, b_exponent) = _whole(a), _whole(b)
    sign = ((a ^ b) >> 63) << 63
    if not a_whole:
        return sign
    quotient, rest = divmod(abs(a_whole) << 120, abs(b_whole))
    quotient = -quotient if sign else quotient
    return _rounded(quotient, a_exponent - b_exponent - 120, rest != 0, mode)


def _sqrt(a: int, mode: str) -> int:
    whole, exponent = _whole(a)
    whole, exponent = whole << (120 + exponent % 2), exponent - 120 - exponent % 2
    root = isqrt(whole)
    return _rounded(root, exponent // 2, root * root != whole, mode)


def _each(exact: Callable[..., int], where: Any, result: Any, operands: tuple[Any, ...], mode: str) -> Any:
    """Replaces the rows of a result that are marked by the exact ones."""
    columns = [as_unsigned(np.broadcast_to(term, result.shape)[where]).tolist() for term in operands]
    bits = [exact(*row, mode) for row in zip(*columns, strict=True)]
    result[where] = as_float(np.array(bits, np.uint64))
    return result


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b and its error (Dekker), exact where no part overflows or underflows."""
    product = a * b
    big_a, big_b = a * SPLITTER, b * SPLITTER
    a_high, b_high = big_a - (big_a - a), big_b - (big_b - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _plain_fma(a: Any, b: Any, c: Any) -> Any:
    """Rounded twice, but right in what infinities and NaN give: a finite product, however large, leaves c alone."""
    return np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)


def _is_within(magnitude: Any, least: float, greatest: float) -> Any:
    return ((magnitude > least) & (magnitude < greatest)) | (magnitude == 0)


def _fma_nearest(a: Any, b: Any, c: Any) -> Any:
    product, error = _two_product(a, b)
    low, lower = two_sum(c, error)
    high, middle = two_sum(product, low)
    result = np.asarray(high + odd_sum(middle, lower))
    plain = _plain_fma(a, b, c)
    # A zero's sign, infinities and NaN are those of the plain sum, and the transformation does not keep them.
    is_plain = (result == 0) | ~np.isfinite(plain) | (product == 0)
    result = np.where(is_plain, plain, result)
    is_safe = np.abs(a) < 2.0**990
    is_safe &= np.abs(b) < 2.0**990
    is_safe &= _is_within(np.abs(product), 2.0**-900, 2.0**1000) & (np.abs(c) < 2.0**1000)
    is_safe &= (product != 0) | (a == 0) | (b == 0)
    doubtful = ~is_safe & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    return _each(_fma, doubtful, result, (a, b, c), "rn") if doubtful.any() else result


_fma_nearest_in_chunks = in_chunks(_fma_nearest, np.float64)


def fma_float64(a: Any, b: Any, c: Any, mode: str) -> Any:
    if mode == "rn":
        return _fma_nearest_in_chunks(a, b, c)
    result = np.array(_plain_fma(a, b, c))
    return _each(
        _fma, np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & np.ones(result.shape, bool), result, (a, b, c), mode
    )


def mul_float64(a: Any, b: Any, mode: str) -> Any:
    result = np.array(a * b)
    return result if mode == "rn" else _each(_mul, np.isfinite(a) & np.isfinite(b), result, (a, b), mode)


def div_float64(a: Any, b: Any, mode: str) -> Any:
    result = np.array(a / b)
    return result if mode == "rn" else _each(_div, np.isfinite(a) & np.isfinite(b) & (b != 0), result, (a, b), mode)


def sqrt_float64(a: Any, mode: str) -> Any:
    result = np.array(np.sqrt(a))
    return result if mode == "rn" else _each(_sqrt, np.isfinite(a) & (a > 0), result, (a,), mode)

"""Sums of products as a tensor core makes them: A B + C over whole tiles, fitted to recorded answers of an H200.

One step adds K products and the accumulator at once. Products are exact. All terms are cut (to zero) to a whole number
of units of 2^(E - fraction), where E is the largest exponent among them: of a product, the sum of its factors'
exponents, of which a denormal has that of the least normal number; a term that is zero has none. The sum of what is
left is exact, and is rounded once. All recorded answers of every format come out bit for bit:
- f16, bf16 and tf32: the fraction has 25 bits, and one step takes all K of the instruction. Sums are cut to f32.
- e4m3 and e5m2, `wgmma`: 13 bits, all 32 at once, and the sum is cut to 13 bits of mantissa.
- e4m3 and e5m2, `mma.sync`: Hopper has no such unit. Factors become f16; a first step takes each thread's lower two of
  four neighbours along k, a second one its upper two, from zero on; the accumulator is added to the result in f32.
Sums into f16 are rounded to nearest. Nothing is recorded of f32 sums that overflow (here: infinity) or are denormal.
What others found: Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"; Khattak and Mikaitis 2025, "Accurate
models of NVIDIA tensor cores".
A step of K products of normal numbers, with 25 bits and f32 sums, is within (K + 5) / 4 x 2^-23 x (sum|a b| + |c|).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.numbers.exact import fma_float64
from simulators.gpu.numbers.formats import FORMATS, decoded
from simulators.gpu.numbers.half import f16_to_float32, of_odd
from simulators.gpu.numbers.nan import F32, FMA_RANK, canonical, passed_on

Array = NDArray[Any]
CHUNK = 1 << 14  # sums at a time, so that their float64 temporaries stay in a core's cache
_NO_EXPONENT = -5000  # of zero: less than that of any product
_LEAST_EXPONENT = -400  # where all terms are zero
_MINUS_ZERO, _MINUS_ZERO_F16 = np.uint32(1 << 31), np.uint16(1 << 15)


@dataclass(frozen=True)
class Step:
    """How the terms of one sum are cut."""

    fraction: int = 25  # bits below the largest exponent
    mantissa: int = 23  # bits of the result, if it is f32


WHOLE = Step()
FP8_WGMMA = Step(13, 13)


def multiply_add(a: Array, b: Array, c: Array, types: tuple[str, str, str], step: Step) -> Array:
    """A B + C in one step. a: codes [W, M, K]; b: codes [W, K, N]; c and the result: bits [W, M, N] of the accumulator.
    types: of the accumulator (f32, f16), of a, of b."""
    kind = types[0]
    warps, _, columns = c.shape
    # NumPy is quick along the last axis: that becomes the tiles, if there are more of them than columns.
    by_tile = warps > columns
    left = a.transpose(2, 1, 0)[:, :, None, :] if by_tile else a.transpose(2, 0, 1)[..., None]  # [K, ...]
    right = b.transpose(1, 2, 0)[:, None] if by_tile else b.transpose(1, 0, 2)[:, :, None, :]
    addend = c.transpose(1, 2, 0) if by_tile else c
    result = np.empty(addend.shape, c.dtype)
    size = max(CHUNK * warps // max(c.size, 1), 1)
    for start in range(0, warps, size):
        tiles = slice(start, start + size)
        part = (..., tiles) if by_tile else (tiles, ...)
        of_k = part if by_tile else (slice(None), tiles)
        terms = _Terms.of(left[of_k], types[1]), _Terms.of(right[of_k], types[2]), _Terms.of(addend[part], kind)
        total = _sum(*terms, step.fraction)
        result[part] = _cut(total, step.mantissa) if kind == "f32" else _nearest_f16(total)
    return np.ascontiguousarray(result.transpose(2, 0, 1)) if by_tile else result


def multiply_add_fp8(a: Array, b: Array, c: Array, types: tuple[str, str, str]) -> Array:
    """A B + C of e4m3 and e5m2 as `mma.sync` does it on Hopper. Shapes as in `multiply_add`."""
    kind = types[0]
    total = np.zeros_like(c)
    order = np.arange(a.shape[-1]).reshape(-1, 2, 2)  # k: of four neighbours, the lower and the upper two
    for half in range(2):
        k = order[:, half].ravel()
        total = multiply_add(a[..., k], b[:, k], total, types, WHOLE)
    if kind == "f32":
        return canonical(total.view(np.float32) + c.view(np.float32))
    return of_odd((f16_to_float32(total) + f16_to_float32(c)).astype(np.float64), "f16")


def multiply_add_integers(a: Array, b: Array, c: Array, saturates: bool) -> Array:
    """a: integers [W, M, K]; b: [W, K, N]; c and the result: u32 bits of s32. Sums of these are exact in float64."""
    total = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64) + c.view(np.int32)
    if saturates:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return total.astype(np.uint32)


def multiply_add_float64(a: Array, b: Array, c: Array) -> Array:
    """A B + C of f64: an fma after another, in the order of k. No answers of a chip are recorded."""
    total = c
    for k in range(a.shape[-1]):
        one, other = np.broadcast_arrays(a[:, :, k, None], b[:, k, None, :])
        operands = np.ascontiguousarray(one), np.ascontiguousarray(other), np.ascontiguousarray(total)
        x, y, z = (bits.view(np.float64) for bits in operands)
        total = passed_on(np.array(fma_float64(x, y, z, "rn")), [operands[i] for i in FMA_RANK])
    return total


@cache
def _table(name: str) -> Array:
    return decoded(FORMATS[name])


def _values(codes: Array, name: str) -> Array:
    """float64 of codes; tf32 in the upper 19 of 32 bits."""
    match name:
        case "f32":
            return codes.view(np.float32).astype(np.float64)
        case "tf32":
            return (codes & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return _table(name)[codes].astype(np.float64)


@dataclass(frozen=True)
class _Terms:
    """Numbers, and their exponents as the format's field says them (of infinities and NaN anything: they need none)."""

    values: Array  # float64
    exponents: Array  # int16

    @staticmethod
    def of(codes: Array, name: str) -> _Terms:
        values = _values(np.ascontiguousarray(codes), name)
        exponents = np.maximum(np.frexp(values)[1] - 1, FORMATS[name].least_exponent)
        return _Terms(values, np.where(values == 0, _NO_EXPONENT, exponents).astype(np.int16))


def _sum(a: _Terms, b: _Terms, c: _Terms, fraction: int) -> Array:
    """float64, of the shape of c: the sum of what is left of the terms. a, b: [K, ...] that broadcast to that shape.
    Infinities and NaN as in any sum."""
    exponent = np.empty(c.values.shape, np.int16)
    top = c.exponents.copy()
    for one, other in zip(a.exponents, b.exponents, strict=True):
        np.add(one, other, out=exponent)
        np.maximum(top, exponent, out=top)
    unit = np.maximum(top, _LEAST_EXPONENT).astype(np.int64) - fraction
    scale = _power_of_two(-unit)
    total = np.trunc(c.values * scale)
    product = np.empty(total.shape)
    for one, other in zip(a.values, b.values, strict=True):
        np.multiply(one, other, out=product)
        product *= scale
        np.trunc(product, out=product)
        total += product
    return total * _power_of_two(unit)


def _power_of_two(exponents: Array) -> Array:
    return ((exponents + 1023) << 52).view(np.float64)


def _cut(values: Array, mantissa: int) -> Array:
    """float64 to f32 bits of so many bits of mantissa, to zero; what is too large becomes infinity, and -0 is +0."""
    nearest = values.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= (np.abs(nearest) > np.abs(values)) & np.isfinite(nearest)
    bits &= np.uint32(0xFFFFFFFF << (23 - mantissa) & 0xFFFFFFFF)
    bits[bits == _MINUS_ZERO] = 0
    bits[np.isnan(values)] = F32
    return bits


def _nearest_f16(values: Array) -> Array:
    """float64 to f16 bits; -0 is +0."""
    bits = of_odd(values, "f16")
    bits[bits == _MINUS_ZERO_F16] = 0
    return bits

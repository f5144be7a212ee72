"""Float32 arithmetic whose rounding is known: what the reference computes, not what is fastest."""

from __future__ import annotations

import math

import cutlass
from cutlass import cute, range_constexpr

_SHIFT = 1.5 * 2.0**23  # a number of this size has no fraction: adding it rounds to an integer, in the lowest bits
_SHIFT_BITS = 0x4B400000
_LN2_HIGH = 0.693145751953125  # ln 2 to 16 bits: its product with an integer of 7 bits is exact
_LN2_LOW = math.log(2.0) - _LN2_HIGH
_DEGREE = 7


def product(a: cutlass.Float32, b: cutlass.Float32 | float) -> cutlass.Float32:
    """a * b, rounded: never fused with an addition that follows.

    A fused a * b + c errs less, but elsewhere than the reference's two roundings do: where the sum cancels, the two
    results are many ULPs apart, and which of them is nearer to the truth is chance.
    """
    return cute.math.mul(a, cutlass.Float32(b), rounding=cute.math.RoundingMode.NEAREST_EVEN)


@cute.jit
def exp_of_negative(x: cutlass.Float32) -> cutlass.Float32:
    """exp(x) for x <= 0, within 0.9 ULP (and half a subnormal).

    exp(x) = 2^n exp(r), |r| <= ln(2) / 2, by Taylor's series, whose rest is below 2^-27. The compiler's own exp rests
    on an instruction that is promised to 2^-22 only.
    """
    f32 = cutlass.Float32
    bounded = f32(-110.0) if x < -110.0 else x  # of which exp is 0 too; NaN stays
    shifted = cute.math.fma(bounded, f32(math.log2(math.e)), f32(_SHIFT))
    n = shifted - _SHIFT
    r = cute.math.fma(n, f32(-_LN2_LOW), cute.math.fma(n, f32(-_LN2_HIGH), bounded))
    series = f32(1.0 / math.factorial(_DEGREE))
    for k in range_constexpr(_DEGREE - 1, -1, -1):
        series = cute.math.fma(series, r, f32(1.0 / math.factorial(k)))
    # 2^n in two factors, because one alone may not be a normal number. NaN is not worth a branch: it is in `series`.
    exponent = shifted.bitcast(cutlass.Int32) - _SHIFT_BITS
    first = exponent >> 1
    return series * _power_of_two(first) * _power_of_two(exponent - first)


def _power_of_two(exponent: cutlass.Int32) -> cutlass.Float32:
    """2^exponent, -126 .. 127."""
    return ((exponent + 127) << 23).bitcast(cutlass.Float32)

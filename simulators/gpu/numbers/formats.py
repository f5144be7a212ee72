"""The narrow floating-point formats of PTX, and rounding into them from float64 by whole numbers.

A code is a magnitude below a sign. Magnitudes grow with their codes, so a mantissa that rounds up into the next power
of two needs no case of its own. PTX ISA 5.2.2 (fundamental types) and 5.2.3 (alternate formats); OCP MX 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import UNSIGNED, as_unsigned, select


@dataclass(frozen=True)
class FloatFormat:
    """A binary format with gradual underflow."""

    bits: int  # with the sign
    mantissa_bits: int  # those that are stored
    least_exponent: int  # of normal numbers
    greatest: int  # code of the greatest finite magnitude
    infinity: int | None  # its code, if there is one
    nan: int  # code that a NaN becomes; without a NaN in the format: the greatest magnitude


FORMATS = {
    "f32": FloatFormat(32, 23, -126, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF),
    "tf32": FloatFormat(19, 10, -126, 0x3FBFF, 0x3FC00, 0x3FFFF),  # the upper 19 of 32 bits
    "f16": FloatFormat(16, 10, -14, 0x7BFF, 0x7C00, 0x7FFF),
    "bf16": FloatFormat(16, 7, -126, 0x7F7F, 0x7F80, 0x7FFF),
    "e4m3": FloatFormat(8, 3, -6, 0x7E, None, 0x7F),
    "e5m2": FloatFormat(8, 2, -14, 0x7B, 0x7C, 0x7F),
    "e2m3": FloatFormat(6, 3, 0, 0x1F, None, 0x1F),
    "e3m2": FloatFormat(6, 2, -2, 0x1F, None, 0x1F),
    "e2m1": FloatFormat(4, 1, 0, 0x7, None, 0x7),
}


def encode(values: Any, form: FloatFormat, mode: str, is_finite: bool = False) -> Any:
    """float64 to codes of a format, as uint64. Modes: rn, rna (ties away from zero), rz, rm, rp.

    is_finite (.satfinite): what is too large becomes the greatest finite number. Else it becomes infinity where the
    mode rounds away from zero, or the format's NaN if it has no infinity.
    """
    word = np.uint64
    bits = as_unsigned(values)
    sign = bits >> word(63)
    exponent = ((bits >> word(52)) & word(0x7FF)).astype(np.int64) - 1023
    fraction = bits & word((1 << 52) - 1)
    mantissa = np.where(exponent == -1023, fraction, fraction | word(1 << 52))  # float64's own denormals are all tiny
    above = np.maximum(exponent - form.least_exponent, 0)
    below = np.maximum(form.least_exponent - exponent, 0)
    drop = np.minimum(52 - form.mantissa_bits + below, 60).astype(word)
    unit = word(1) << drop
    last = (mantissa >> drop) & word(1)
    is_upward = sign if mode == "rm" else word(1) - sign
    addend = {
        "rn": (unit >> word(1)) - word(1) + last,
        "rna": unit >> word(1),
        "rz": word(0),
        "rm": (unit - word(1)) * is_upward,
        "rp": (unit - word(1)) * is_upward,
    }[mode]
    code = ((mantissa + addend) >> drop) + (above.astype(word) << word(form.mantissa_bits))
    greatest = word(form.greatest)
    code = np.where(code > greatest, _beyond(form, mode, sign, is_finite), code)
    if not is_finite and form.infinity is not None:
        code = np.where(np.isinf(values), word(form.infinity), code)
    code = code | (sign << word(form.bits - 1))
    return np.where(np.isnan(values), word(form.nan), code)


def _beyond(form: FloatFormat, mode: str, sign: Any, is_finite: bool) -> Any:
    """The code of a finite magnitude that is too large."""
    word = np.uint64
    greatest = word(form.greatest)
    if is_finite or mode == "rz":
        return greatest
    outside = word(form.nan if form.infinity is None else form.infinity)
    if mode in ("rn", "rna"):
        return outside
    return np.where((sign == 1) == (mode == "rm"), outside, greatest)


def decoded(form: FloatFormat) -> Any:
    """float32 values of all codes of a format of at most 16 bits, for use as a table."""
    codes = np.arange(1 << form.bits)
    magnitudes = codes & ((1 << (form.bits - 1)) - 1)
    exponents, fractions = magnitudes >> form.mantissa_bits, magnitudes & ((1 << form.mantissa_bits) - 1)
    whole = np.where(exponents > 0, fractions + (1 << form.mantissa_bits), fractions)
    values = np.ldexp(whole.astype(np.float64), np.maximum(exponents, 1) - 1 + form.least_exponent - form.mantissa_bits)
    is_outside = magnitudes > form.greatest
    values = np.where(is_outside & (magnitudes == form.infinity), np.inf, np.where(is_outside, np.nan, values))
    return np.where(codes >> (form.bits - 1) == 1, -values, values).astype(np.float32)


def clamp_negative(codes: Any, form: FloatFormat) -> Any:
    """.relu: negative numbers and -0 to +0; a NaN stays."""
    is_negative = (codes >> codes.dtype.type(form.bits - 1)) == 1
    return select(is_negative, codes.dtype.type(0), codes)


def narrowed(codes: Any, width: int) -> Any:
    """uint64 codes to the array type of a register's width."""
    return codes.astype(UNSIGNED[width])

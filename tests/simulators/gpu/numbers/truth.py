"""Rounding by fractions: slow, short, and independent of how the simulator does it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

EDGES32 = [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x34000000, 0x33800000]
EDGES32 += [0x7F7FFFFF, 0x7F7FFFFE, 0x7F800000, 0x4B000001, 0x4B800000, 0x00FFFFFF, 0x33000001, 0x477FF000, 0x387FE000]
EDGES32 = [bits | sign for bits in EDGES32 for sign in (0, 1 << 31)]
EDGES64 = [0, 1, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, 0x3FF0000000000000, 0x3FF0000000000001, 0x3FEFFFFFFFFFFFFF]
EDGES64 += [0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x3CA0000000000000, 0x3CA0000000000001, 0x4330000000000001]
EDGES64 += [0x0350000000000003, 0x1FF0000000000001]
EDGES64 = [bits | sign for bits in EDGES64 for sign in (0, 1 << 63)]


def value(bits: int, width: int) -> float:
    """f32 or f64 bits."""
    kind, number = (np.uint32, np.float32) if width == 32 else (np.uint64, np.float64)
    return float(kind(bits).view(number))


def rounded(exact: Fraction, mantissa_bits: int, least_exponent: int, mode: str) -> Fraction:
    """To a format without a greatest number. `mantissa_bits` are those stored."""
    if not exact:
        return exact
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least_exponent) - mantissa_bits)
    units = exact / unit
    floor = units.numerator // units.denominator
    if floor == units:
        return exact
    if mode == "rn":
        return round(units) * unit  # ties to even
    if mode == "rna":
        return (1 if exact > 0 else -1) * ((abs(units) + Fraction(1, 2)).__floor__()) * unit
    is_up = mode == "rp" or (mode == "rz" and exact < 0)
    return (floor + is_up) * unit


def float_of(exact: Fraction, width: int, mode: str, zero: float = 0.0) -> float:
    """The f32 or f64 that an exact result rounds to, as a float; `zero` is what an exact zero becomes."""
    mantissa, least, top = (23, -126, 127) if width == 32 else (52, -1022, 1023)
    if not exact:
        return zero
    result = rounded(exact, mantissa, least, mode)
    greatest = (2 - Fraction(1, 2**mantissa)) * Fraction(2) ** top
    if abs(result) > greatest:
        is_kept = mode in ("rz", "rm" if exact > 0 else "rp")
        magnitude = float(greatest) if is_kept else float("inf")
        return magnitude if exact > 0 else -magnitude
    return float(result) if result else (0.0 if exact > 0 else -0.0)

"""What the chip makes of NaN: one place for the rules, which recorded answers of an H200 gave.

- f32, f16, bf16: there is one NaN, all ones but the sign; neg, abs and .xorsign make it too.
- f64: an operand that is a NaN is passed on, made quiet, sign and all; of several a rank tells which. Where none is one
  the result is the negative default NaN.
- Conversions to and from f64 keep the payload's upper bits, except that f32 with .ftz becomes the one NaN first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import UNSIGNED, as_float, as_unsigned, select, width_of

F32 = np.uint32(0x7FFFFFFF)
F64_DEFAULT = np.uint64(0xFFF8000000000000)
F64_QUIET = np.uint64(1 << 51)
F64_APPROXIMATE = np.uint64(0x7FFFFFFF00000000)  # rcp.approx and rsqrt.approx
HALF = np.uint16(0x7FFF)  # f16 and bf16
# A rank of operands of f64, the first one wins. By arithmetic: fma, and all else is some fma; division is code.
FMA_RANK, SUM_RANK, QUOTIENT_RANK, ONLY = (1, 2, 0), (1, 0), (0, 1), (0,)
MANTISSA_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}


def has_nan(values: Any) -> bool:
    """Whether there is a NaN; one pass without a temporary, for it goes with every addition."""
    return bool(values.size) and bool(np.isnan(np.minimum.reduce(values, axis=None)))


def canonical(values: Any) -> Any:
    """The bits of a new array of float32, with the one NaN."""
    bits = as_unsigned(values)
    if has_nan(values):
        bits = np.asarray(bits)
        bits[np.isnan(values)] = F32
    return bits


def passed_on(values: Any, operands: Iterable[Any]) -> Any:
    """The bits of a new array of float64 whose NaN come from the operands, given as bits in their rank."""
    bits = as_unsigned(values)
    if not has_nan(values):
        return bits
    nan: Any = F64_DEFAULT
    for operand in reversed(list(operands)):
        nan = select(np.isnan(as_float(operand)), operand | F64_QUIET, nan)
    return select(np.isnan(values), nan, bits)


def carried(bits: Any, source: str, destination: str) -> Any:
    """A NaN of one format as the quiet NaN of another with the same sign and upper payload. Bits in, bits out."""
    width = int(destination.lstrip("bf"))
    source_mantissa, mantissa = MANTISSA_BITS[source], MANTISSA_BITS[destination]
    word = np.uint64
    wide = bits.astype(word)
    fraction = (wide & word((1 << source_mantissa) - 1)) << word(52 - source_mantissa) >> word(52 - mantissa)
    sign = wide >> word(width_of(bits) - 1) << word(width - 1)
    ones = ((1 << (width - 1)) - 1) & ~((1 << (mantissa - 1)) - 1)  # exponent and quiet bit
    return (sign | fraction | word(ones)).astype(UNSIGNED[width])


def integer_of_nan(source: str, destination: str) -> int:
    """What cvt makes of a NaN: 0, but 1 << (width - 1) from f64 or to 64 bits. PTX ISA, cvt."""
    width = int(destination[1:])
    return 1 << (width - 1) if source == "f64" or width == 64 else 0


OOB = np.uint16(0x7FF7)  # fma.oob: an operand of these bits, of either sign, makes the result zero

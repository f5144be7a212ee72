"""Floating-point formats as sign, exponent and mantissa, and random values of them that are worth a probe."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class Format:
    """A format with a sign, `exponent` bits and `mantissa` bits."""

    exponent: int
    mantissa: int
    spans: tuple[int, ...]  # random values get exponents within one of these of zero

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    def decode(self, bits: NDArray) -> NDArray[np.float64]:
        """The values, exactly (of f16, bf16, f32 and f64). Payloads of NaN are lost."""
        with np.errstate(invalid="ignore"):
            if self.bits == 64:
                return bits.astype(np.uint64).view(np.float64)
            if self.exponent == 5:
                return bits.astype(np.uint16).view(np.float16).astype(np.float64)
            return (bits.astype(np.uint32) << np.uint32(32 - self.bits)).view(np.float32).astype(np.float64)

    def product(self, a: NDArray, b: NDArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """a * b in float64, and where that is finite and the format holds it."""
        with np.errstate(all="ignore"):
            product = self.decode(a) * self.decode(b)
            limit = 2.0**self.bias
            return product, np.abs(product) < limit


FORMATS = {
    "f16": Format(5, 10, (3, 12, 15)),
    "bf16": Format(8, 7, (3, 12, 40, 127)),
    "f32": Format(8, 23, (3, 12, 40, 127)),
    "f64": Format(11, 52, (3, 12, 70, 160)),
}


def encode(form: Format, values: NDArray[np.float64]) -> Bits:
    """The bits of values (finite where it matters), rounded in whatever way."""
    with np.errstate(all="ignore"):
        if form.bits == 64:
            return values.view(np.uint64).copy()
        if form.exponent == 5:
            return values.astype(np.float16).view(np.uint16).astype(np.uint64)
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        return bits >> np.uint64(32 - form.bits)


def random_float(form: Format, h: Bits, g: Bits) -> Bits:
    """Random bits, or values of moderate exponents, half of these with a mantissa that ends in 1000... somewhere."""
    mantissa_mask = np.uint64(2**form.mantissa - 1)
    mantissa = h & mantissa_mask
    # A tie of a rounding that drops so many bits.
    dropped = (g >> np.uint64(8)) % np.uint64(form.mantissa) + np.uint64(1)
    half = np.uint64(1) << (dropped - np.uint64(1))
    tied = mantissa & ~(np.uint64(2) * half - np.uint64(1)) & mantissa_mask | half
    # One more, one less, or the tie itself.
    tied = (tied + (g >> np.uint64(20)) % np.uint64(3) - np.uint64(1)) & mantissa_mask
    mantissa = np.where(g >> np.uint64(63) == 0, tied, mantissa)
    span = np.array(form.spans, np.int64)[(g >> np.uint64(30)) % np.uint64(len(form.spans))]
    exponent = ((g >> np.uint64(36)) & np.uint64(0xFFFFFF)).astype(np.int64) % (2 * span + 1) - span
    biased = np.clip(exponent + form.bias, 0, 2**form.exponent - 1).astype(np.uint64)
    moderate = h >> np.uint64(63) << np.uint64(form.bits - 1) | biased << np.uint64(form.mantissa) | mantissa
    raw = h & np.uint64(2**form.bits - 1)
    return np.where(g & np.uint64(3) == 0, raw, moderate)

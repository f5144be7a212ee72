"""Operands of matrix instructions: each warp (or group of four) has a regime that tells one thing of the accumulation.

The regimes, by the number of the group: values of like size; of many sizes; neighbours along k that cancel; few huge
among small ones; sparse powers of two (exact products, so that the width of the accumulator shows); ones times powers
of two; specials (infinities, NaN, denormals) strewn in; tiny values whose sums underflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.simulators.gpu.vectors.formats import Bits, Format

NUM_REGIMES = 8


@dataclass(frozen=True)
class TileKind:
    """One register of a tile: packed elements of a format."""

    form: Format | None  # None: integers, all bits random
    role: str  # "a", "b" or "c"
    packed: int  # elements in a register
    group: int = 32  # threads that share a regime
    low_bits: int = 0  # random bits below the mantissa (tf32 in 32 bits)

    @property
    def element_bits(self) -> int:
        return 32 // self.packed

    @property
    def bits(self) -> int:
        return 32


_F32, _F16, _BF16 = Format(8, 23, ()), Format(5, 10, ()), Format(8, 7, ())
_TF32, _E4M3, _E5M2 = Format(8, 10, ()), Format(4, 3, ()), Format(5, 2, ())


def _kinds() -> dict[str, TileKind]:
    kinds = {"tile_s8": TileKind(None, "a", 4)}
    for suffix, group in (("", 32), ("_wide", 128)):
        for role in "ab":
            kinds[f"tile_f16_{role}{suffix}"] = TileKind(_F16, role, 2, group)
            kinds[f"tile_bf16_{role}{suffix}"] = TileKind(_BF16, role, 2, group)
            kinds[f"tile_tf32_{role}{suffix}"] = TileKind(_TF32, role, 1, group, 13)
            kinds[f"tile_e4m3_{role}{suffix}"] = TileKind(_E4M3, role, 4, group)
            kinds[f"tile_e5m2_{role}{suffix}"] = TileKind(_E5M2, role, 4, group)
        kinds[f"tile_f32_c{suffix}"] = TileKind(_F32, "c", 1, group)
        kinds[f"tile_f16_c{suffix}"] = TileKind(_F16, "c", 2, group)
    return kinds


TILE_KINDS = _kinds()


def tile_inputs(kind: TileKind, label: str, count: int, hashed: Callable[[str, int], Bits]) -> Bits:
    """uint64 [count], a register of each thread."""
    if kind.form is None:
        return hashed(label, count) & np.uint64(0xFFFFFFFF)
    regime = np.arange(count) // kind.group % NUM_REGIMES
    word = np.zeros(count, np.uint64)
    first = np.zeros(count, np.uint64)
    for i in range(kind.packed):
        element = _element(kind, regime, hashed(f"{label}/{i}", count), hashed(f"{label}/{i}/more", count))
        if i % 2 == 0:
            first = element
        elif kind.role == "a":
            # a[k + 1] = -a[k], but for the last bit of some; b[k + 1] = b[k].
            cancels = first ^ np.uint64(1 << (kind.element_bits - 1)) ^ (element & np.uint64(1))
            element = np.where(regime == 2, cancels, element)
        elif kind.role == "b":
            element = np.where(regime == 2, first, element)
        word |= element << np.uint64(i * kind.element_bits)
    return word


def _element(kind: TileKind, regime: np.ndarray, h: Bits, g: Bits) -> Bits:
    form = kind.form
    assert form is not None
    # Exponents of products reach twice as far as those of factors; e4m3 ends at 8.
    reach = min(form.bias - 1, 12) if kind.role != "c" else min(form.bias - 1, 24)
    number = (g & np.uint64(0xFFFF)).astype(np.int64)
    exponent = np.select(
        [regime == 0, regime == 1, regime == 2, regime == 3, regime == 4, regime == 5, regime == 6],
        [
            number % 4 - 2,
            number % (2 * reach + 1) - reach,
            number % 6 - 3,
            np.where(g >> np.uint64(16) & np.uint64(7) == 0, reach, number % 4 - reach),
            number % (2 * reach + 1) - reach,
            (number % (2 * reach + 1) - reach) if kind.role != "a" else 0 * number,
            number % 6 - 3,
        ],
        number % 6 - form.bias if form.exponent <= 5 else number % 30 - 75,
    )
    mantissa = h & np.uint64(2**form.mantissa - 1)
    mantissa = np.where((regime == 4) | (regime == 5), np.uint64(0), mantissa)
    biased = np.clip(exponent + form.bias, 0, 2**form.exponent - 2).astype(np.uint64)
    sign = h >> np.uint64(63)
    bits = sign << np.uint64(form.bits - 1) | biased << np.uint64(form.mantissa) | mantissa
    bits = np.where((regime == 4) & (g >> np.uint64(20) & np.uint64(3) != 0), np.uint64(0), bits)
    # Any bits at all, among them infinities and NaN: exponents of all ones, or none.
    ones = np.uint64((2**form.exponent - 1) << form.mantissa)
    special = np.where(g >> np.uint64(30) & np.uint64(1) == 0, bits | ones, bits & ~ones)
    special = np.where(g >> np.uint64(31) & np.uint64(1) == 0, special & ~np.uint64(2**form.mantissa - 1), special)
    bits = np.where((regime == 6) & (g >> np.uint64(24) & np.uint64(31) == 0), special, bits)
    return bits << np.uint64(kind.low_bits) | g >> np.uint64(40) & np.uint64(2**kind.low_bits - 1)

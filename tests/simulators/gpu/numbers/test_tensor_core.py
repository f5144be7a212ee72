"""Sums of products against whole numbers of any size, and against the stated bound."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.gpu.numbers.formats import FORMATS, decoded
from simulators.gpu.numbers.tensor_core import (
    FP8_WGMMA,
    WHOLE,
    Step,
    multiply_add,
    multiply_add_float64,
    multiply_add_integers,
)

DTYPES = {"f16": np.uint16, "bf16": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8}


def exponent_of(value: Fraction, least: int) -> int:
    exponent = least
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    return exponent


def step_of(a: list[Fraction], b: list[Fraction], c: Fraction, least: int, step: Step) -> Fraction:
    """One element, term by term."""
    exponents = [exponent_of(x, least) + exponent_of(y, least) for x, y in zip(a, b, strict=True) if x * y]
    exponents += [exponent_of(c, -126)] if c else []
    unit = Fraction(2) ** (max(exponents, default=0) - step.fraction)
    total = unit * sum(int(term / unit) for term in (*(x * y for x, y in zip(a, b, strict=True)), c))
    if not total:
        return total
    last = Fraction(2) ** (exponent_of(total, -126) - step.mantissa)
    return last * int(total / last)


@pytest.mark.parametrize(("name", "step"), [("f16", WHOLE), ("bf16", WHOLE), ("e4m3", FP8_WGMMA), ("e5m2", FP8_WGMMA)])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.integers(0, 6), tiles=st.sampled_from([1, 12]))
def test_a_step_cuts_every_term_and_then_the_sum(name: str, step: Step, seed: int, spread: int, tiles: int) -> None:
    random, form = np.random.default_rng(seed), FORMATS[name]
    values = decoded(form).astype(np.float64)
    usable = np.flatnonzero((np.abs(values) <= 2.0**spread) & ((np.abs(values) >= 2.0**-spread) | (values == 0)))
    a, b = (random.choice(usable, shape).astype(DTYPES[name]) for shape in ((tiles, 2, 8), (tiles, 8, 3)))
    c = (random.standard_normal((tiles, 2, 3)) * 4.0**spread).astype(np.float32)
    found = multiply_add(a, b, c.view(np.uint32), ("f32", name, name), step).view(np.float32)
    tile = tiles - 1
    for i in range(2):
        for j in range(3):
            left, right = ([Fraction(float(values[code])) for code in codes] for codes in (a[tile, i], b[tile, :, j]))
            expected = step_of(left, right, Fraction(float(c[tile, i, j])), form.least_exponent, step)
            assert Fraction(float(found[tile, i, j])) == expected


def test_the_bound_holds_and_is_near() -> None:
    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16 for shape in ((50, 16, 16), (50, 16, 8))
    )
    c = random.standard_normal((50, 16, 8)).astype(np.float32)
    found = multiply_add(a.astype(np.uint16), b.astype(np.uint16), c.view(np.uint32), ("f32", "bf16", "bf16"), WHOLE)
    x, y = ((bits << np.uint32(16)).view(np.float32).astype(np.float64) for bits in (a, b))
    unit = 2.0**-23 * (np.abs(x) @ np.abs(y) + np.abs(c))
    worst = (np.abs(found.view(np.float32) - (x @ y + c)) / unit).max()
    assert 0.1 < worst < (16 + 5) / 4


def test_what_is_too_large_is_infinite_and_nan_is_the_one_nan() -> None:
    a = np.array([0x7F7F, 0x7F80, 0x7FC0, 0x3F80], np.uint16).reshape(4, 1, 1)  # greatest, infinity, NaN, 1
    b = np.full((4, 1, 1), 0x4000, np.uint16)  # 2
    c = np.array([0, 0xFF800000, 0, 0x80000000], np.uint32).reshape(4, 1, 1)
    with np.errstate(all="ignore"):  # as the machine runs
        found = multiply_add(a, b, c, ("f32", "bf16", "bf16"), WHOLE)
    assert [hex(one) for one in found.ravel()] == ["0x7f800000", "0x7fffffff", "0x7fffffff", "0x40000000"]


def test_a_sum_that_vanishes_is_plus_zero() -> None:
    a, b = np.array([[[0x8001]]], np.uint16), np.array([[[0x0001]]], np.uint16)
    assert multiply_add(a, b, np.zeros((1, 1, 1), np.uint16), ("f16", "f16", "f16"), WHOLE).item() == 0


def test_whole_numbers_wrap_or_saturate() -> None:
    a, b = np.full((1, 1, 4), 127, np.int16), np.full((1, 4, 1), 127, np.int16)
    c = np.full((1, 1, 1), 0x7FFFFFFF, np.uint32)
    assert multiply_add_integers(a, b, c, saturates=True).item() == 0x7FFFFFFF
    assert multiply_add_integers(a, b, c, saturates=False).item() == 0x7FFFFFFF + 4 * 127 * 127


def test_float64_is_a_chain_of_fma() -> None:
    a, b = np.array([[[1 + 2.0**-30, -1.0]]]), np.array([[[1 + 2.0**-30], [1.0]]])
    found = multiply_add_float64(a.view(np.uint64), b.view(np.uint64), np.zeros((1, 1, 1), np.uint64))
    assert found.view(np.float64).item() == 2.0**-29  # the first product is rounded: 2^-60 is lost

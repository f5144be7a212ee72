"""Sums, products and fma in every direction against fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.gpu.numbers import exact, rounding
from tests.simulators.gpu.numbers.truth import EDGES32, EDGES64, float_of, value

FINITE32 = [bits for bits in EDGES32 if bits & 0x7FFFFFFF < 0x7F800000]
FINITE64 = [bits for bits in EDGES64 if bits & (2**63 - 1) < 0x7FF << 52]
FLOATS32 = st.one_of(st.sampled_from(FINITE32), st.integers(0, 2**32 - 1).filter(lambda b: b >> 23 & 0xFF != 0xFF))
FLOATS64 = st.one_of(st.sampled_from(FINITE64), st.integers(0, 2**64 - 1).filter(lambda b: b >> 52 & 0x7FF != 0x7FF))


def same(got: float, want: float) -> bool:
    return got == want and np.signbit(got) == np.signbit(want)


def zero_of(a: float, b: float, c: float, mode: str) -> float:
    """What a * b + c gives if it is exactly zero."""
    product_sign = bool(np.signbit(a)) != bool(np.signbit(b))
    if product_sign == bool(np.signbit(c)):
        return -0.0 if product_sign else 0.0
    return -0.0 if mode == "rm" else 0.0


def check_fma(rows: list[tuple[int, ...]], width: int, mode: str) -> None:
    kind, number = (np.uint32, np.float32) if width == 32 else (np.uint64, np.float64)
    function = rounding.fma_float32 if width == 32 else exact.fma_float64
    columns = [np.array(column, kind).view(number) for column in zip(*rows, strict=True)]
    with np.errstate(all="ignore"):
        got = function(*columns, mode)
    for row, result in zip(rows, got, strict=True):
        a, b, c = (value(bits, width) for bits in row)
        want = float_of(Fraction(a) * Fraction(b) + Fraction(c), width, mode, zero_of(a, b, c, mode))
        assert same(float(result), want), (mode, [hex(bits) for bits in row], float(result).hex(), want.hex())


@pytest.mark.parametrize("mode", rounding.MODES)
def test_fma_float32_of_edges(mode: str) -> None:
    check_fma(list(product(FINITE32[::3], FINITE32[1::4], FINITE32[::3])), 32, mode)


@pytest.mark.parametrize("mode", rounding.MODES)
def test_fma_float64_of_edges(mode: str) -> None:
    check_fma(list(product(FINITE64[::3], FINITE64[1::3], FINITE64[::2])), 64, mode)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FLOATS32, FLOATS32, FLOATS32), min_size=1, max_size=8), st.sampled_from(rounding.MODES))
def test_fma_float32(rows: list[tuple[int, ...]], mode: str) -> None:
    check_fma(rows, 32, mode)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FLOATS64, FLOATS64, FLOATS64), min_size=1, max_size=8), st.sampled_from(rounding.MODES))
def test_fma_float64(rows: list[tuple[int, ...]], mode: str) -> None:
    check_fma(rows, 64, mode)


def test_fma_float32_breaks_a_tie_that_float64_cannot_see() -> None:
    """97 * 172961 = 2^24 + 1 lies half way between two f32; c moves it by less than float64 can hold."""
    rest = np.array([2.0**-100, -(2.0**-100), 0.0], np.float32)
    got = rounding.fma_float32(np.float32(97), np.float32(172961), rest, "rn")
    assert got.tolist() == [2.0**24 + 2, 2.0**24, 2.0**24]


def test_long_arrays_are_what_their_pieces_are() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32).view(np.float32) for _ in range(3))
    with np.errstate(all="ignore"):
        whole = rounding.fma_float32(a, b[0], c, "rn")
        pieces = [rounding.fma_float32(a[i : i + 100], b[0], c[i : i + 100], "rn") for i in range(0, 20000, 100)]
    np.testing.assert_array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize("mode", rounding.MODES)
def test_sums_products_quotients_and_roots_of_float64(mode: str) -> None:
    rows = list(product(FINITE64, FINITE64))
    a, b = (np.array(column, np.uint64).view(np.float64) for column in zip(*rows, strict=True))
    with np.errstate(all="ignore"):
        sums, products = rounding.add_float64(a, b, mode), exact.mul_float64(a, b, mode)
        quotients, roots = exact.div_float64(a, b, mode), exact.sqrt_float64(np.abs(a), mode)
    for x, y, total, of_product, quotient, root in zip(a, b, sums, products, quotients, roots, strict=True):
        left, right = Fraction(float(x)), Fraction(float(y))
        assert same(total, float_of(left + right, 64, mode, zero_of(x, 1.0, y, mode))), (mode, x, y)
        sign = -0.0 if np.signbit(x) != np.signbit(y) else 0.0
        assert same(of_product, float_of(left * right, 64, mode, sign)), (mode, x, y)
        if y:
            assert same(quotient, float_of(left / right, 64, mode, sign)), (mode, x, y)
        # sqrt: the neighbours of a root enclose it on the mode's side
        square, of_x = Fraction(float(root)) ** 2, abs(left)
        assert mode not in ("rz", "rm") or square <= of_x < Fraction(float(np.nextafter(root, np.inf))) ** 2
        assert mode != "rp" or not x or Fraction(float(np.nextafter(root, 0))) ** 2 < of_x <= square


@pytest.mark.parametrize("mode", rounding.MODES)
def test_sums_and_products_of_float32(mode: str) -> None:
    rows = list(product(FINITE32, FINITE32))
    a, b = (np.array(column, np.uint32).view(np.float32) for column in zip(*rows, strict=True))
    with np.errstate(all="ignore"):
        sums, products = rounding.add_float32(a, b, mode), rounding.mul_float32(a, b, mode)
    for x, y, total, of_product in zip(a, b, sums, products, strict=True):
        left, right = Fraction(float(x)), Fraction(float(y))
        assert same(total, float_of(left + right, 32, mode, zero_of(x, 1.0, y, mode))), (mode, x, y)
        sign = -0.0 if np.signbit(x) != np.signbit(y) else 0.0
        assert same(of_product, float_of(left * right, 32, mode, sign)), (mode, x, y)

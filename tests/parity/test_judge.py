"""What a single output is held to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from parity.judge import FEW_DIFFERING, Expectation, Judgement, expectations, judge, worst_of
from reference.formats import Array
from tests.parity.host import ADD_RMS_NORM, CORNER, RMS_NORM, ROUTER

BF16 = np.dtype(ml_dtypes.bfloat16)


def continuous(oracle: Array, dtype: Any, bound: float = 1.0) -> Expectation:
    return Expectation("out", None, oracle, bound, oracle.astype(dtype))


def exact(values: Array) -> Expectation:
    return Expectation("ids", values, None, 0.0, values)


@pytest.fixture
def oracle() -> Array:
    return np.random.default_rng(0).standard_normal((20, 50))


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32], ids=str)
def test_the_right_result(oracle: Array, dtype: Any) -> None:
    judgement = judge(continuous(oracle, dtype), oracle.astype(dtype))
    assert judgement.ok and judgement.mismatches == judgement.differing == 0
    assert judgement.max_ulp <= 0.5 and judgement.dtype == np.dtype(dtype).name


def test_the_place_of_the_largest_error() -> None:
    actual = np.ones((20, 50), np.float32)
    actual[4, 7] += 0.25
    actual[5, 0] += 0.125
    judgement = judge(continuous(np.ones((20, 50)), np.float32), actual)
    assert not judgement.ok and judgement.mismatches == 2
    assert judgement.worst == (4, 7)


@pytest.mark.parametrize(("dtype", "ok"), [(np.float16, False), (np.float32, True)])
def test_narrow_outputs_are_held_to_the_references_own_rounding(oracle: Array, dtype: Any, ok: bool) -> None:
    """A tenth of the elements are the neighbour that is still within the bound."""
    actual = oracle.astype(dtype)
    actual[:, ::10] = np.nextafter(actual[:, ::10], dtype(9))
    judgement = judge(continuous(oracle, dtype, bound=1.6), actual)
    assert judgement.mismatches == 0
    assert judgement.is_rounded_elsewhere is not ok
    assert judgement.ok is ok


def test_a_few_may_differ(oracle: Array) -> None:
    small = oracle[:1, :8]
    for count in range(5):
        actual = small.astype(np.float16)
        actual[0, :count] = np.nextafter(actual[0, :count], np.float16(9))
        assert judge(continuous(small, np.float16, bound=1.6), actual).ok is (count <= FEW_DIFFERING)


def test_nan_is_the_references_own_nan_whatever_its_bits() -> None:
    oracle = np.full((4, 32), np.nan)
    assert judge(continuous(oracle, np.float16), -oracle.astype(np.float16)).ok


def test_exact_outputs_are_equal_to_the_last_bit() -> None:
    values = np.array([[0.0, 1.0], [np.nan, 2.0]], np.float32)
    assert judge(exact(values), values.copy()).ok
    for place, wrong in [((0, 0), -0.0), ((1, 0), 3.0), ((1, 1), np.nextafter(np.float32(2), np.float32(3)))]:
        actual = values.copy()
        actual[place] = wrong
        judgement = judge(exact(values), actual)
        assert not judgement.ok and judgement.worst == place and judgement.max_ulp == math.inf


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_is_right(shape: tuple[int, int]) -> None:
    nothing = np.zeros(shape)
    assert judge(continuous(nothing, np.float16), nothing.astype(np.float16)).ok
    assert judge(exact(nothing.astype(np.int32)), nothing.astype(np.int32)).ok


@pytest.mark.parametrize(
    "wrong", [np.zeros((20, 50), np.float16), np.zeros((20, 49), np.float32)], ids=["dtype", "shape"]
)
def test_another_shape_or_dtype_is_told_of(oracle: Array, wrong: Array) -> None:
    with pytest.raises(ValueError, match=r"out is float\d\d\[20, \d\d\]; it must be float32\[20, 50\]"):
        judge(continuous(oracle, np.float32), wrong)


def test_the_worst_is_what_fails_then_what_is_nearest_to_its_bound() -> None:
    def judgement(ulp: float, bound: float, mismatches: int) -> Judgement:
        return Judgement(f"{ulp} of {bound}", ulp, bound, mismatches, (0,), np.zeros(1), "float32")

    near, far, equal, wrong = (
        judgement(0.9, 1.0, 0),
        judgement(4.0, 8.0, 0),
        judgement(0.0, 0.0, 0),
        judgement(2.0, 1.9, 1),
    )
    assert worst_of([far, near, equal]) is near
    assert worst_of([near, wrong, far]) is wrong
    assert worst_of([equal]) is equal


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_bounds_are_twice_the_references_own_error(dtype: str) -> None:
    call = RMS_NORM.inputs(CORNER | {"dtype": dtype}, np.random.default_rng(0))
    (expected,) = expectations(RMS_NORM, call)
    assert expected.oracle is not None and expected.oracle.dtype == np.float64
    own = judge(expected, expected.like)
    assert expected.bound == pytest.approx(2 * max(own.max_ulp, 0.5))
    assert 1.0 <= expected.bound < 10.0


def test_what_is_expected_has_the_order_and_kind_of_the_outputs() -> None:
    call = ADD_RMS_NORM.inputs(CORNER, np.random.default_rng(0))
    before = {name: array.copy() for name, array in call.arrays.items()}
    assert [one.name for one in expectations(ADD_RMS_NORM, call)] == ["normed", "residual"]
    assert all(np.array_equal(before[name], array) for name, array in call.arrays.items())
    ids, weights = expectations(ROUTER, ROUTER.inputs(CORNER, np.random.default_rng(0)))
    assert ids.exact is not None and ids.oracle is None and ids.bound == 0
    assert weights.exact is None and weights.oracle is not None


def test_a_reference_with_another_number_of_outputs_is_told_of() -> None:
    call = ROUTER.inputs(CORNER, np.random.default_rng(0))
    with pytest.raises(ValueError, match="zip"):
        expectations(replace(ROUTER, outputs=ROUTER.outputs[:1]), call)

"""What a single output is held to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from parity.judge import FEW_DIFFERING, Expectation, Judgement, expectations, judge, worst_of
from parity.twin import Call, Output
from parity.ulp import ulp_errors
from reference.formats import Array
from tests.parity.host import ADD_RMS_NORM, CORNER, RMS_NORM, ROUTER

BF16 = np.dtype(ml_dtypes.bfloat16)


def continuous(oracle: Array, dtype: Any, bound: float = 1.0) -> Expectation:
    return Expectation("out", None, oracle, np.asarray(bound), oracle.astype(dtype))


def exact(values: Array) -> Expectation:
    return Expectation("ids", values, None, np.zeros(()), values)


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
    assert bool(judgement.rounded_elsewhere) is not ok
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


def test_computed_nan_is_any_nan_where_the_output_says_so() -> None:
    values = np.array([[np.nan, 2.0]], np.float32)
    other = np.array([[0x7FC00001, 0x40000000]], np.uint32).view(np.float32)
    assert not judge(exact(values), other).ok
    assert judge(replace(exact(values), any_nan=True), other).ok
    assert not judge(replace(exact(values), any_nan=True), np.full_like(values, 2.0)).ok
    assert not judge(replace(exact(values), any_nan=True), np.full_like(values, np.nan)).ok


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
        return Judgement(f"{ulp} of {bound}", ulp, bound, mismatches, (0,), np.zeros(1), np.zeros(1, bool), "float32")

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
    assert own.ok and own.differing == 0
    if dtype == "float32":
        rows = ulp_errors(expected.like, expected.oracle).max(axis=-1, keepdims=True)
        assert expected.bound == pytest.approx(2 * np.maximum(rows, np.median(rows)))
        assert expected.bound.min() >= 1.0 and expected.bound.max() < 10.0
    else:  # half an ULP and next to nothing, or less for elements that are smaller than what they are measured by
        assert 0.5 < expected.bound.max() < 0.51 and expected.bound.shape == expected.like.shape


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


def of(outputs: tuple[Output, ...], reference: str, **arrays: Array) -> list[Expectation]:
    """What is expected of a reference of this file."""
    twin = replace(RMS_NORM, outputs=outputs, reference=f"{__name__}:{reference}")
    return expectations(twin, Call(arrays))


def square_root_of_square(x: Array) -> Array:
    """|x|; where the square leaves float32, infinity."""
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    return np.sqrt(wide * wide).astype(x.dtype)


def cubed_1_1(x: Array) -> Array:
    return x * x.dtype.type(1.1) * x.dtype.type(1.1) * x.dtype.type(1.1)


def rounded_in_between(x: Array) -> Array:
    """x times 1.1, rounded, times 1.1."""
    for _ in range(2):
        x = (x.astype(np.promote_types(x.dtype, np.float32)) * 1.1).astype(x.dtype)
    return x


def written_to_row_1(x: Array) -> Array:
    """Twice x in row 1."""
    x = x.copy()
    x[1] *= 2
    return x


def test_a_reference_that_overflows_says_nothing() -> None:
    """Its error is no bound: everything would pass."""
    x = np.ones((3, 8), np.float32)
    x[1] = 1e30
    with pytest.raises(ValueError, match=r"the reference of out errs by inf ULP at \[1, 0\]"):
        of((Output("out"),), "square_root_of_square", x=x)
    x[1] = 1e-30  # whose square is 0
    with pytest.raises(ValueError, match=r"errs by .* ULP at \[1, 0\]"):
        of((Output("out"),), "square_root_of_square", x=x)
    x[1] = 1
    assert of((Output("out"),), "square_root_of_square", x=x)[0].bound.max() == 1


def test_a_row_that_errs_much_widens_no_others_bound() -> None:
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    x[4] *= 3e-20  # squares are subnormal
    (expected,) = of((Output("out", floor=0.5),), "square_root_of_square", x=x)
    assert expected.bound[4, 0] > 1000
    assert (np.delete(expected.bound, 4) < 4).all()


def test_a_row_whose_errors_cancel_is_held_to_the_median_row() -> None:
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    x[4] = 1.0
    (expected,) = of((Output("out"),), "cubed_1_1", x=x)
    rows = ulp_errors(expected.like, cast("Array", expected.oracle)).max(axis=-1)
    assert rows[4] < np.median(rows)
    assert expected.bound[4, 0] == 2 * np.median(rows) == expected.bound.min()


@pytest.mark.parametrize("part", ["last row", "last channel", "all"])
@pytest.mark.parametrize("dtype", [BF16, np.float16], ids=str)
def test_one_rounding_is_held_to_half_an_ulp_everywhere(oracle: Array, dtype: Any, part: str) -> None:
    """A single element that is the wrong one of two neighbours, wherever it is."""
    x = oracle.astype(dtype)
    (expected,) = of((Output("out"),), "square_root_of_square", x=x)
    where = {"last row": np.s_[-1], "last channel": np.s_[:, -1], "all": np.s_[:]}[part]
    actual = expected.like.copy()
    actual[where] = np.nextafter(actual[where], dtype.type(9) if isinstance(dtype, np.dtype) else dtype(9))
    judgement = judge(expected, actual)
    assert judgement.mismatches == actual[where].size


@pytest.mark.parametrize("where", [np.s_[-1], np.s_[:, -1], np.s_[:, :, -1], np.s_[2, 3]], ids=str)
def test_two_roundings_are_held_to_the_references_own_part_by_part(where: Any) -> None:
    x = np.random.default_rng(0).standard_normal((60, 40, 50)).astype(np.float16)
    (expected,) = of((Output("out"),), "rounded_in_between", x=x)
    assert expected.bound.shape == (60, 40, 1), "it is known to be rounded more than once"
    actual = expected.like.copy()
    part = actual[where]
    part[..., ::3] = np.nextafter(part[..., ::3], np.float16(9))
    actual[where] = part
    judgement = judge(expected, actual)
    assert judgement.differing < actual.size / 50, "few of all"
    assert "elements of out[" in judgement.rounded_elsewhere and not judgement.ok


def test_what_is_left_as_it_was_is_left_to_the_bit_and_counts_for_nothing() -> None:
    """Of 200 rows one is written: a fault in that alone is seen, and so is one bit anywhere else."""
    x = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float16)
    x[3] = np.nan
    (expected,) = of((Output("x", in_place="x"),), "written_to_row_1", x=x)
    assert judge(expected, expected.like.copy()).ok
    expected = replace(expected, bound=np.asarray(3.0))
    rounded = expected.like.copy()
    rounded[1, ::3] = np.nextafter(rounded[1, ::3], np.float16(9))
    assert judge(expected, rounded).rounded_elsewhere.startswith("22 of 64 elements of x[")
    for place, value in (((7, 5), np.nextafter(x[7, 5], np.float16(9))), ((3, 0), 1.0)):
        touched = expected.like.copy()
        touched[place] = value
        judgement = judge(expected, touched)
        assert judgement.mismatches == 1 and judgement.worst == place and judgement.max_ulp == math.inf


def test_a_share_of_the_terms_is_allowed_where_they_cancel() -> None:
    """Beyond it an element is wrong; where the terms are not finite, nothing is added to the bound."""
    x = np.array([[3.0, -2.0, np.inf, 0.5]] * 4, np.float32)
    terms = np.where(np.isfinite(x), 1e4, np.inf)
    outputs = (Output("out", of_magnitude=2.0),)
    twin = replace(
        RMS_NORM,
        outputs=outputs,
        reference=f"{__name__}:square_root_of_square",
        magnitudes=lambda call: [terms],
    )
    (expected,) = expectations(twin, Call({"x": x}))
    (without,) = of((Output("out"),), "square_root_of_square", x=x)
    right = expected.like
    allowed = (2 * 1e4 * 2.0**-23 * np.isfinite(x)).astype(np.float32)
    assert judge(expected, right + allowed * np.float32(0.9)).ok
    assert not judge(expected, right + allowed * np.float32(1.2)).ok
    assert not judge(without, right + allowed * np.float32(0.9)).ok
    assert not judge(expected, np.where(np.isfinite(right), right, np.float32(7.0))).ok
    of_dtype = replace(outputs[0], of_magnitude={"float16": 2.0})
    (other,) = expectations(replace(twin, outputs=(of_dtype,)), Call({"x": x}))
    assert not judge(other, right + allowed * np.float32(0.9)).ok


def test_elements_may_be_others_where_terms_are_rounded_on_the_way() -> None:
    """But none may be beyond its bound."""
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(BF16)
    outputs = (Output("out", of_magnitude=2.0**16, rounds_terms=True),)
    twin = replace(
        RMS_NORM,
        outputs=outputs,
        reference=f"{__name__}:square_root_of_square",
        magnitudes=lambda call: [np.abs(call.arrays["x"].astype(np.float64))],
    )
    (expected,) = expectations(twin, Call({"x": x}))
    neighbours = (expected.like.view(np.uint16) + 1).view(BF16)
    assert judge(expected, neighbours).ok
    assert not judge(replace(expected, rounds_terms=False), neighbours).ok
    assert not judge(expected, (expected.like.astype(np.float32) * 1.05).astype(BF16)).ok

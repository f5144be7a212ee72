"""The measure that every kernel is judged by is itself right, and can fail."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.ulp import rounded_once, spacing, ulp_error
from reference.formats import ACTIVATION_FORMATS, DType
from tests.reference.kernels.helpers import assert_same_bits, normal

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = pytest.mark.parametrize("dtype", [one.dtype for one in ACTIVATION_FORMATS], ids=str)


@pytest.mark.parametrize("value", [1.0, 1.5, -3.7, 60000.0, 2.0**-14, 2.0**-16, 0.0])
@pytest.mark.parametrize("of", [np.float16, np.float32])
def test_spacing_is_numpys(value: float, of: type) -> None:
    assert spacing(np.float64(value), np.dtype(of)) == abs(float(np.spacing(of(value))))


def test_spacing_of_bfloat16() -> None:
    assert spacing(np.float64(1.0), BF16) == 2.0**-7
    assert spacing(np.float64(1.99), BF16) == 2.0**-7
    assert spacing(np.float64(2.0), BF16) == 2.0**-6
    assert spacing(np.float64(0.0), BF16) == 2.0**-133


@DTYPES
def test_the_right_answer_rounded_is_within_half_an_ulp(dtype: DType) -> None:
    expected = normal(0, 64, 256).astype(np.float64)
    error = ulp_error(expected.astype(dtype), expected)
    assert error <= 0.5
    assert error > 0.4 or dtype == np.float32  # float32 holds these values exactly


@DTYPES
def test_one_neighbour_off_is_one_ulp(dtype: DType) -> None:
    expected = np.full((1, 8), 1.25)
    actual = expected.astype(dtype)
    actual[0, 3] += spacing(np.float64(1.25), dtype)
    assert ulp_error(actual, expected) == 1.0


@DTYPES
@pytest.mark.parametrize("corruption", ["zeroed", "nan", "one element", "swapped rows"])
def test_a_corrupted_output_fails(dtype: DType, corruption: str) -> None:
    expected = normal(1, 4, 32).astype(np.float64)
    actual = expected.astype(dtype)
    if corruption == "zeroed":
        actual[:] = 0
    elif corruption == "nan":
        actual[2, 5] = np.nan
    elif corruption == "one element":
        actual[2, 5] *= 1.02
    else:
        actual = actual[::-1]
    assert ulp_error(actual, expected) > 1.0 > rounded_once(dtype, 0)


def test_small_elements_are_held_to_the_digits_of_their_row() -> None:
    expected = np.array([[1.0, 5e-10]])
    assert ulp_error(np.array([[1.0, 0.0]], np.float32), expected) < 1.0
    assert ulp_error(np.array([[0.0]], np.float32), np.array([[1e-9]])) > 1000.0


def test_same_bits_sees_the_sign_of_zero_and_lets_nan_equal_nan() -> None:
    assert_same_bits(np.array([np.nan, 0.0]), np.array([np.nan, 0.0]))
    with pytest.raises(AssertionError):
        assert_same_bits(np.array([0.0]), np.array([-0.0]))


def test_what_overflows_is_infinite_and_nan_stays_nan() -> None:
    expected = np.array([[70000.0, -65519.0, np.nan, np.inf, 1.0]])
    with np.errstate(over="ignore"):
        right = expected.astype(np.float16)
    assert ulp_error(right, expected) <= 0.5
    for place, wrong in [(0, 65504.0), (0, -np.inf), (2, 0.0), (3, np.nan), (4, np.inf), (4, np.nan)]:
        broken = right.copy()
        broken[0, place] = wrong
        assert ulp_error(broken, expected) == np.inf, (place, wrong)

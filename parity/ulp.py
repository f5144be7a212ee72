"""Errors in ULPs of the output's dtype, against the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from reference.formats import Array, DType

ROW_SHARE = 1 / 64  # of a row's root mean square: elements below it are held to the digits that this has


def oracle(function: Callable[..., Any], *arrays: Any, **constants: Any) -> Any:
    """A reference function in float64: every array but integers, booleans and 8-bit codes is widened first."""
    return in_precision(np.float64, function, *arrays, **constants)


def in_precision(dtype: type, function: Callable[..., Any], *arrays: Any, **constants: Any) -> Any:
    """A reference function of arrays that are widened to dtype first, as for the oracle: what it gives is not rounded
    to what they were."""

    def widen(array: Any) -> Any:
        is_wide = isinstance(array, np.ndarray) and array.dtype.itemsize > 1 and array.dtype.kind not in "iub"
        return array.astype(dtype) if is_wide else array

    return function(*map(widen, arrays), **constants)


def spacing(magnitude: Array, dtype: DType) -> Array:
    """The distance between neighbours of that magnitude in dtype, f64; subnormals have the smallest one."""
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(magnitude), float(info.smallest_normal)))
    return np.ldexp(1.0, exponent - 1 - info.nmant)


def magnitude(expected: Array, dtype: DType, row_share: float = ROW_SHARE) -> Array:
    """What each element is measured by the ULP of: max(|expected|, root mean square of its row x row_share), f64. What
    is not finite in dtype counts as 0."""
    expected = _overflowed(expected, dtype)
    finite = np.where(np.isfinite(expected), expected, 0.0)
    floor = np.sqrt(np.mean(finite * finite, axis=-1, keepdims=True)) * row_share
    return np.maximum(np.abs(finite), floor)


def _overflowed(expected: Array, dtype: DType) -> Array:
    """Infinite where dtype is."""
    largest = float(ml_dtypes.finfo(dtype).max)
    halfway = largest + spacing(np.asarray(largest), dtype) / 2
    return np.where(np.abs(expected) >= halfway, np.copysign(np.inf, expected), expected)


def ulp_errors(actual: Array, expected: Array, row_share: float = ROW_SHARE) -> Array:
    """The error of each element in ULPs of actual's dtype, f64; expected is the float64 oracle.

    An ULP is the spacing at an element's `magnitude`, so that one which is small by cancellation is not held to digits
    that its row does not have. What overflows dtype is expected as infinity. NaN for NaN and infinity for the same
    infinity are no error; against anything else they are infinitely wrong.
    """
    assert expected.dtype == np.float64 and actual.shape == expected.shape, (
        expected.dtype,
        actual.shape,
        expected.shape,
    )
    values = actual.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        ulp = spacing(magnitude(expected, actual.dtype, row_share), actual.dtype)
        expected = _overflowed(expected, actual.dtype)
        error = np.abs(values - expected) / ulp
    same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def ulp_error(actual: Array, expected: Array) -> float:
    """The largest of `ulp_errors`; 0 of nothing."""
    return float(np.max(ulp_errors(actual, expected), initial=0.0)) if actual.size else 0.0


def rounded_once(dtype: DType, float32_ulps: float) -> float:
    """The error in ULPs of dtype that one rounding leaves, of a float32 result with an error of `float32_ulps`."""
    return 0.5 + float32_ulps * 2.0 ** (ml_dtypes.finfo(dtype).nmant - np.finfo(np.float32).nmant)

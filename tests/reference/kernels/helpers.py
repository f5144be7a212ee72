"""What the kernel tests share: backends, seeded arrays, and errors measured in ULPs against a float64 oracle."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from reference.formats import ACTIVATION_FORMATS, Array, DType

DTYPES = [format_.dtype for format_ in ACTIVATION_FORMATS]  # float32, float16, bfloat16


def run_numpy(function: Callable[..., Any], *arrays: Array | None, **constants: Any) -> Any:
    """Call a kernel as NumPy runs it."""
    return function(*arrays, **constants)


def run_jax(function: Callable[..., Any], *arrays: Array | None, **constants: Any) -> Any:
    """Call a kernel under `jax.jit`: positional arguments are traced, keyword arguments are compile-time constants."""
    traced = [None if array is None else jnp.asarray(array) for array in arrays]
    return jax.tree.map(np.asarray, _compiled(function, tuple(constants.items()))(*traced))


@cache
def _compiled(function: Callable[..., Any], constants: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """Kept, so that calls with the same shapes compile once."""
    return jax.jit(partial(function, **dict(constants)))


BACKENDS = {"numpy": run_numpy, "jax": run_jax}


def normal(seed: int, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Array:
    """Normally distributed values of this shape, rounded to dtype. The same seed and shape give the same values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def oracle(function: Callable[..., Any], *arrays: Array | None, **constants: Any) -> Any:
    """The kernel in float64: every array but integers and 8-bit codes is widened first."""

    def widen(array: Array | None) -> Array | None:
        if array is None or array.dtype.itemsize == 1 or array.dtype.kind in "iu":
            return array
        return array.astype(np.float64)

    return function(*map(widen, arrays), **constants)


def spacing(magnitude: Array, dtype: DType) -> Array:
    """The distance between neighbours of that magnitude in dtype, f64; subnormals have the smallest one."""
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(magnitude), float(info.smallest_normal)))
    return np.ldexp(1.0, exponent - 1 - info.nmant)


def ulp_error(actual: Array, expected: Array) -> float:
    """The largest error in ULPs of actual's dtype; expected is the float64 oracle.

    An ULP is the spacing at max(|expected|, root mean square of its row / 64), so that an element which is small by
    cancellation is not held to digits that its row does not have. NaN against a number is infinitely wrong.
    """
    assert expected.dtype == np.float64 and actual.shape == expected.shape, (
        expected.dtype,
        actual.shape,
        expected.shape,
    )
    if actual.size == 0:
        return 0.0
    values = actual.astype(np.float64)
    floor = np.sqrt(np.mean(expected * expected, axis=-1, keepdims=True)) / 64.0
    error = np.abs(values - expected) / spacing(np.maximum(np.abs(expected), floor), actual.dtype)
    return float(np.max(np.where(np.isnan(error), np.inf, error)))


def rounded_once(dtype: DType, float32_ulps: float) -> float:
    """The error in ULPs of dtype that one rounding leaves, of a float32 result with an error of `float32_ulps`."""
    return 0.5 + float32_ulps * 2.0 ** (ml_dtypes.finfo(dtype).nmant - np.finfo(np.float32).nmant)


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Equal dtype, shape and bytes: NaN equals NaN, and 0 does not equal -0."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, (actual.dtype, expected.dtype)
    assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()


def f32(*values: float) -> Array:  # [n]
    return np.array(values, np.float32)

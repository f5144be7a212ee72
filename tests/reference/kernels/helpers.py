"""What the kernel tests share: backends and seeded arrays. Errors are measured by `parity.ulp`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reference.formats import ACTIVATION_FORMATS, Array

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


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Equal dtype, shape and bytes: NaN equals NaN, and 0 does not equal -0."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, (actual.dtype, expected.dtype)
    assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()


def f32(*values: float) -> Array:  # [n]
    return np.array(values, np.float32)

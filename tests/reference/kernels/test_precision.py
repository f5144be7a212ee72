"""`wide` casts to float32 exactly, leaves float64 alone, and a cast back really rounds under `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from reference.formats import FLOAT8_E4M3, Array, DType
from reference.kernels.precision import wide
from tests.reference.kernels.helpers import assert_same_bits, normal


def test_wide_is_exact(run: Callable[..., Any], dtype: DType) -> None:
    x = normal(0, 5, 7, dtype=dtype)
    widened = run(wide, x)
    assert widened.dtype == np.float32
    assert_same_bits(widened.astype(dtype), x)


def test_wide_holds_every_e4m3_code(run: Callable[..., Any]) -> None:
    codes = np.arange(256, dtype=np.uint8).view(FLOAT8_E4M3.dtype)
    assert np.array_equal(run(wide, codes), codes.astype(np.float32), equal_nan=True)


def test_float64_stays_float64() -> None:
    x = normal(0, 5).astype(np.float64)
    assert wide(x) is x


def test_without_a_cast_the_namespaces_disagree() -> None:
    """The reason why every kernel casts in so many words."""
    one = np.ones(1, ml_dtypes.bfloat16)
    assert (one * 2.0).dtype == np.float32
    assert (jnp.asarray(one) * 2.0).dtype == jnp.bfloat16


@pytest.mark.parametrize("narrow", [ml_dtypes.bfloat16, np.float16])
def test_a_rounding_in_the_middle_survives_compilation(run: Callable[..., Any], narrow: Any) -> None:
    """A compiler that were free to keep excess precision would drop the casts and with them the rounding contract."""

    def round_then_subtract(x: Array, y: Array) -> Array:
        xp = x.__array_namespace__()
        return wide(xp.astype(x * y, narrow)) - x * y

    x, y = normal(1, 1000), normal(2, 1000)
    lost = run(round_then_subtract, x, y)
    assert np.count_nonzero(lost) > 900
    assert np.allclose(lost, (x * y).astype(narrow).astype(np.float32) - x * y, atol=1e-7)

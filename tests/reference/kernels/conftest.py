"""Fixtures of the kernel tests: `run` calls a kernel in NumPy and under `jax.jit`, `dtype` is each activation dtype.

Both backends are held to the same bound against the float64 oracle. Where that bound is `rounded_once`, they can be
no more than one ULP of the output dtype apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reference.formats import DType
from tests.reference.kernels.helpers import BACKENDS, DTYPES


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS), scope="session")
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """run(kernel, *arrays, **constants)."""
    return request.param


@pytest.fixture(params=DTYPES, ids=str, scope="session")
def dtype(request: pytest.FixtureRequest) -> DType:
    """float32, float16, bfloat16."""
    return request.param

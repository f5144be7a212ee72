"""RMSNorm: error against float64, the two rounding points of add + norm, and what transformers computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from parity.ulp import oracle, rounded_once, ulp_error
from reference.formats import DType
from reference.kernels.rms_norm import add_rms_norm, rms_norm
from tests.reference.kernels.helpers import assert_same_bits, normal
from tests.reference.kernels.torch_arrays import from_torch, to_torch

EPS = 1e-6
SHAPES = [(0, 64), (1, 1), (7, 769), (3, 4, 128), (2, 5120)]


@pytest.mark.parametrize(("shape", "weight_bias"), [*((shape, 0.0) for shape in SHAPES), ((7, 769), 1.0)], ids=str)
def test_one_rounding_away_from_the_oracle(
    run: Callable[..., Any], dtype: DType, shape: tuple[int, ...], weight_bias: float
) -> None:
    x, weight = normal(0, *shape, dtype=dtype), normal(1, shape[-1], dtype=dtype)
    actual = run(rms_norm, x, weight, eps=EPS, weight_bias=weight_bias)
    assert actual.dtype == dtype
    assert ulp_error(actual, oracle(rms_norm, x, weight, eps=EPS, weight_bias=weight_bias)) <= rounded_once(dtype, 4)


def test_the_oracle_is_torchs_float64() -> None:
    x, weight = normal(0, 9, 100).astype(np.float64), normal(1, 100).astype(np.float64)
    expected = torch.nn.functional.rms_norm(to_torch(x), (100,), to_torch(weight), EPS)
    assert np.allclose(rms_norm(x, weight, EPS), from_torch(expected), rtol=1e-14, atol=0)


def test_transformers_rounds_twice(dtype: DType) -> None:
    x, weight = normal(0, 64, 256, dtype=dtype), normal(1, 256, dtype=dtype)
    module = Qwen3RMSNorm(256, EPS)
    module.weight = torch.nn.Parameter(to_torch(weight))
    theirs = from_torch(module(to_torch(x)))
    expected = oracle(rms_norm, x, weight, eps=EPS)
    assert ulp_error(theirs, expected) <= rounded_once(dtype, 4) + 1.0
    if dtype != np.float32:
        assert ulp_error(theirs, expected) > 0.9 > ulp_error(rms_norm(x, weight, EPS), expected)


def test_the_weight_bias_is_added_to_the_weight(run: Callable[..., Any]) -> None:
    x, weight = normal(0, 5, 32), normal(1, 32)
    assert ulp_error(run(rms_norm, x, weight, eps=EPS, weight_bias=1.0), oracle(rms_norm, x, weight + 1.0, eps=EPS)) < 4
    assert ulp_error(run(rms_norm, x, weight, eps=EPS), oracle(rms_norm, x, weight + 1.0, eps=EPS)) > 1e5


def test_a_nan_row_spoils_no_other_and_a_zero_row_stays_zero(run: Callable[..., Any], dtype: DType) -> None:
    x, weight = normal(0, 4, 64, dtype=dtype), normal(1, 64, dtype=dtype)
    clean = run(rms_norm, x, weight, eps=EPS)
    x[1, 17], x[2] = np.nan, 0
    actual = run(rms_norm, x, weight, eps=EPS)
    assert np.isnan(actual[1].astype(np.float32)).all()
    assert not actual[2].any()
    assert_same_bits(actual[[0, 3]], clean[[0, 3]])


def test_large_rows_overflow_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = rms_norm(np.full((1, 64), 1e18, ml_dtypes.bfloat16), np.ones(64, ml_dtypes.bfloat16), EPS)
    assert np.all(actual == 1)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 300), scale=st.floats(1e-2, 1e4))
def test_the_rms_of_the_output_is_one(seed: int, width: int, scale: float) -> None:
    x = normal(seed, 3, width, scale=scale)
    x[:, 0] = scale  # no row of (almost) zeros, which eps would be large against
    y = rms_norm(x, np.ones(width, np.float32), 1e-12)
    assert np.allclose(np.sqrt(np.mean(y * y, axis=-1)), 1.0, rtol=1e-5)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 300), power=st.integers(-20, 20))
def test_without_eps_scale_does_not_matter(seed: int, width: int, power: int) -> None:
    x, weight = normal(seed, 3, width, dtype=ml_dtypes.bfloat16), normal(seed + 1, width, dtype=ml_dtypes.bfloat16)
    scaled = (x.astype(np.float32) * 2.0**power).astype(ml_dtypes.bfloat16)
    assert_same_bits(rms_norm(scaled, weight, 0.0), rms_norm(x, weight, 0.0))


def test_eps_stands_under_the_root(run: Callable[..., Any]) -> None:
    x = np.full((1, 16), 1e-3, np.float32)
    expected = np.full((1, 16), 1e-3 / np.sqrt(1e-6 + 1e-2))
    assert ulp_error(run(rms_norm, x, np.ones(16, np.float32), eps=1e-2), expected) < 4


@pytest.mark.parametrize("num_tokens", [0, 1, 7])
def test_add_normalises_the_rounded_sum(run: Callable[..., Any], dtype: DType, num_tokens: int) -> None:
    shape = (num_tokens, 769)
    x, residual, weight = normal(0, *shape, dtype=dtype), normal(1, *shape, dtype=dtype), normal(2, 769, dtype=dtype)
    normed, new_residual = run(add_rms_norm, x, residual, weight, eps=EPS)
    assert_same_bits(new_residual, (x.astype(np.float32) + residual.astype(np.float32)).astype(dtype))
    expected = oracle(rms_norm, new_residual, weight, eps=EPS)
    assert ulp_error(normed, expected) <= rounded_once(dtype, 4)


@pytest.mark.parametrize("narrow", [ml_dtypes.bfloat16, np.float16])
def test_it_shows_which_sum_is_normalised(run: Callable[..., Any], narrow: Any) -> None:
    """The negative control: the norm of the sum before it is rounded is further off than the bound above."""
    x, residual, weight = (normal(seed, 7, 769, dtype=narrow) for seed in (0, 1, 2))
    normed, _ = run(add_rms_norm, x, residual, weight[0], eps=EPS)
    of_unrounded_sum = rms_norm(x.astype(np.float64) + residual.astype(np.float64), weight[0].astype(np.float64), EPS)
    assert ulp_error(normed, of_unrounded_sum) > 0.75 > rounded_once(np.dtype(narrow), 4)

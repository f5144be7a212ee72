"""QK-norm works on each head by itself, with q's weight on q and k's weight on k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from parity.ulp import oracle, rounded_once, ulp_error
from reference.formats import DType
from reference.kernels.qk_norm import qk_norm
from reference.kernels.rms_norm import rms_norm
from tests.reference.kernels.helpers import assert_same_bits, normal
from tests.reference.kernels.torch_arrays import from_torch, to_torch

EPS = 1e-6


def arguments(num_tokens: int, dtype: Any = np.float32) -> list[Any]:
    """q of 6 heads and k of 2, on quite different scales, and their weights."""
    return [
        normal(0, num_tokens, 6, 128, dtype=dtype, scale=4.0),
        normal(1, num_tokens, 2, 128, dtype=dtype, scale=0.25),
        normal(2, 128, dtype=dtype),
        normal(3, 128, dtype=dtype),
    ]


@pytest.mark.parametrize(("num_tokens", "weight_bias"), [(0, 0.0), (1, 1.0), (3, 0.0)])
def test_one_rounding_away_from_the_oracle(
    run: Callable[..., Any], dtype: DType, num_tokens: int, weight_bias: float
) -> None:
    inputs = arguments(num_tokens, dtype)
    actual = run(qk_norm, *inputs, eps=EPS, weight_bias=weight_bias)
    for output, expected in zip(actual, oracle(qk_norm, *inputs, eps=EPS, weight_bias=weight_bias), strict=True):
        assert output.dtype == dtype
        assert ulp_error(output, expected) <= rounded_once(dtype, 4)


def test_each_head_is_normalised_alone_with_its_weight() -> None:
    q, k, q_weight, k_weight = (array.astype(np.float64) for array in arguments(3))
    actual_q, actual_k = qk_norm(q, k, q_weight, k_weight, EPS)
    for t in range(3):
        for n in range(6):
            head = q[t, n]
            expected = head / np.sqrt(np.dot(head, head) / 128 + EPS) * q_weight
            assert np.allclose(actual_q[t, n], expected, rtol=1e-12)
        for n in range(2):
            head = k[t, n]
            expected = head / np.sqrt(np.dot(head, head) / 128 + EPS) * k_weight
            assert np.allclose(actual_k[t, n], expected, rtol=1e-12)


def test_a_mean_over_all_heads_would_be_noticed() -> None:
    q, k, q_weight, k_weight = arguments(3)
    actual, _ = qk_norm(q, k, q_weight, k_weight, EPS)
    over_heads = rms_norm(q.reshape(3, -1).astype(np.float64), np.tile(q_weight, 6).astype(np.float64), EPS)
    assert ulp_error(actual, over_heads.reshape(q.shape)) > 1000


def test_a_nan_head_spoils_no_other(run: Callable[..., Any], dtype: DType) -> None:
    q, k, q_weight, k_weight = arguments(3, dtype)
    clean_q, clean_k = run(qk_norm, q, k, q_weight, k_weight, eps=EPS)
    q[1, 4, 7] = np.nan
    actual_q, actual_k = run(qk_norm, q, k, q_weight, k_weight, eps=EPS)
    poisoned = np.isnan(actual_q.astype(np.float32)).all(axis=-1)
    assert np.argwhere(poisoned).tolist() == [[1, 4]]
    assert_same_bits(actual_q[~poisoned], clean_q[~poisoned])
    assert_same_bits(actual_k, clean_k)


def test_transformers_attention_normalises_the_same_way() -> None:
    config = Qwen3Config(hidden_size=64, num_attention_heads=6, num_key_value_heads=2, head_dim=128, rms_norm_eps=EPS)
    layer = Qwen3Attention(config, layer_idx=0)
    q, k, q_weight, k_weight = arguments(5)
    layer.q_norm.weight = torch.nn.Parameter(to_torch(q_weight))
    layer.k_norm.weight = torch.nn.Parameter(to_torch(k_weight))
    actual_q, actual_k = qk_norm(q, k, q_weight, k_weight, EPS)
    assert ulp_error(actual_q, from_torch(layer.q_norm(to_torch(q))).astype(np.float64)) <= 8
    assert ulp_error(actual_k, from_torch(layer.k_norm(to_torch(k))).astype(np.float64)) <= 8


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e6))
def test_attention_logits_are_bounded_whatever_the_projections_do(seed: int, scale: float) -> None:
    q, k = normal(seed, 2, 3, 16, scale=scale), normal(seed, 2, 3, 16, scale=scale)  # parallel: the worst case
    q_weight, k_weight = normal(seed + 1, 16), normal(seed + 2, 16)
    normed_q, normed_k = qk_norm(q, k, q_weight, k_weight, EPS)
    bound = np.abs(q_weight).max() * np.abs(k_weight).max() * 16
    assert np.all(np.abs(np.sum(normed_q * normed_k, axis=-1)) <= bound * (1 + 1e-5))

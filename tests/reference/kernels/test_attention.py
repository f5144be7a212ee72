"""Attention against the definition query by query, and torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from parity.ulp import oracle, rounded_once, ulp_error
from reference.formats import Array, DType
from reference.kernels.attention import attention
from tests.reference.kernels.helpers import assert_same_bits, normal
from tests.reference.kernels.torch_arrays import from_torch, to_torch

FLOAT32_ULPS = 512  # 8 of a row's root mean square, which the measure takes 64 times finer


@pytest.fixture(params=[np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)], ids=str, scope="module")
def dtype(request: pytest.FixtureRequest) -> DType:
    """Without float16, which takes bfloat16's way through this kernel: these tests spend their time on compiling."""
    return request.param


def qkv(
    num_queries: int, num_keys: int, *, heads: int = 4, kv_heads: int = 2, dim: int = 16, dtype: Any = np.float32
) -> list[Array]:
    return [
        normal(0, num_queries, heads, dim, dtype=dtype),
        normal(1, num_keys, kv_heads, dim, dtype=dtype),
        normal(2, num_keys, kv_heads, dim, dtype=dtype),
    ]


def plain_attention(q: Array, k: Array, v: Array, start: int, scale: float) -> Array:
    """The definition, one query and one head at a time, in float64."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    out = np.zeros_like(q)
    for i in range(q.shape[0]):
        for n in range(q.shape[1]):
            seen = slice(0, start + i + 1)
            scores = k[seen, n // group] @ q[i, n] * scale
            weights = np.exp(scores - scores.max())
            out[i, n] = weights / weights.sum() @ v[seen, n // group]
    return out


@pytest.mark.parametrize(
    ("num_queries", "start", "spare", "heads", "kv_heads"),
    [(0, 3, 2, 4, 2), (1, 0, 0, 1, 1), (1, 40, 3, 4, 1), (5, 0, 0, 4, 4), (7, 13, 9, 6, 2)],
)
def test_one_rounding_away_from_the_definition(
    run: Callable[..., Any], dtype: DType, num_queries: int, start: int, spare: int, heads: int, kv_heads: int
) -> None:
    q, k, v = qkv(num_queries, start + num_queries + spare, heads=heads, kv_heads=kv_heads, dtype=dtype)
    k[start + num_queries :] = v[start + num_queries :] = np.nan
    actual = run(attention, q, k, v, start=start)
    assert actual.dtype == dtype
    assert ulp_error(actual, plain_attention(q, k, v, start, 0.25)) <= rounded_once(dtype, FLOAT32_ULPS)


def test_the_oracle_is_the_definition() -> None:
    q, k, v = (array.astype(np.float64) for array in qkv(7, 20, heads=6, kv_heads=2))
    for start in (0, 13):
        expected = plain_attention(q, k, v, start, 0.3)
        assert np.allclose(attention(q, k, v, start=start, scale=0.3), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("start", [0, 11])
def test_torch_agrees(start: int) -> None:
    q, k, v = (array.astype(np.float64) for array in qkv(9, start + 9, heads=6, kv_heads=2))
    mask = torch.from_numpy(np.arange(start + 9) <= start + np.arange(9)[:, None])
    tq, tk, tv = (to_torch(np.swapaxes(array, 0, 1)) for array in (q, k, v))
    theirs = scaled_dot_product_attention(tq, tk, tv, attn_mask=mask, enable_gqa=True)
    assert np.allclose(attention(q, k, v, start=start), np.swapaxes(from_torch(theirs), 0, 1), rtol=1e-12, atol=1e-14)


def test_start_may_be_traced() -> None:
    """One compilation serves every position."""
    q, k, v = qkv(3, 20)
    compiled: Any = jax.jit(lambda q, k, v, start: attention(q, k, v, start=start))
    for start in (0, 1, 17):
        expected = oracle(attention, q, k, v, start=start)
        assert ulp_error(np.asarray(compiled(q, k, v, np.int32(start))), expected) <= FLOAT32_ULPS
    assert compiled._cache_size() == 1


def test_the_past_is_seen_and_the_future_is_not(run: Callable[..., Any]) -> None:
    q, k, v = qkv(4, 10)
    before = run(attention, q, k, v, start=6)
    k[8], v[8] = 3.0, -3.0  # the key that stands where query 2 does
    after = run(attention, q, k, v, start=6)
    assert_same_bits(after[:2], before[:2])
    assert np.all(np.any(after[2:] != before[2:], axis=-1))


def test_heads_that_are_adjacent_share_a_kv_head() -> None:
    q, k, v = qkv(3, 5, heads=4, kv_heads=2)
    v[:, 1] = 100.0
    actual = attention(q, k, v, start=2)
    assert np.all(np.abs(actual[:, :2]) < 10)
    assert np.allclose(actual[:, 2:], 100.0)


def test_a_query_of_zeros_takes_the_mean_of_what_it_sees(run: Callable[..., Any]) -> None:
    _, k, v = qkv(1, 50)
    k[37:] = v[37:] = np.nan
    actual = run(attention, np.zeros((1, 4, 16), np.float32), k, v, start=36)
    expected = np.repeat(v[:37].astype(np.float64).mean(axis=0), 2, axis=0)[None]
    assert ulp_error(actual, expected) <= FLOAT32_ULPS


def test_a_query_that_sees_nothing_gives_zero(run: Callable[..., Any]) -> None:
    q, k, v = qkv(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = run(attention, q, k, v, start=-2)
    assert not actual[:2].any()
    assert ulp_error(actual[2:], plain_attention(q[2:], k, v, 0, 0.25)) <= FLOAT32_ULPS


def test_large_scores_neither_overflow_nor_warn(run: Callable[..., Any]) -> None:
    q, k, v = qkv(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = run(attention, q * 1e6, k * 1e6, v, start=2)
    assert ulp_error(actual, plain_attention(q * 1e6, k * 1e6, v, 2, 0.25)) <= FLOAT32_ULPS


def test_probabilities_are_not_rounded(dtype: DType) -> None:
    """The negative control: the arithmetic of transformers' eager attention is further off than our bound."""
    q, k, v = qkv(8, 64, heads=2, kv_heads=2, dtype=dtype)
    expected = plain_attention(q, k, v, 56, 0.25)
    scores = np.einsum("tnd,snd->nts", q.astype(np.float32), k.astype(np.float32)).astype(dtype).astype(np.float32)
    scores = np.where(np.arange(64) <= 56 + np.arange(8)[:, None], scores * np.float32(0.25), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    rounded = (weights / weights.sum(-1, keepdims=True)).astype(dtype).astype(np.float32)
    theirs = np.einsum("nts,snd->tnd", rounded, v.astype(np.float32)).astype(dtype)
    bound = rounded_once(dtype, FLOAT32_ULPS)
    assert ulp_error(attention(q, k, v, start=56), expected) <= bound
    assert dtype == np.float32 or ulp_error(theirs, expected) > 2 * bound


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 40), data=st.data())
def test_chunks_make_the_whole(seed: int, length: int, data: st.DataObject) -> None:
    q = normal(seed, length, 4, 8)
    k, v = normal(seed + 1, length, 2, 8), normal(seed + 2, length, 2, 8)
    whole = oracle(attention, q, k, v, start=0)
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=4))})
    chunks = [attention(q[a:b], k[:b], v[:b], start=a) for a, b in pairwise(cuts)]
    assert ulp_error(np.concatenate(chunks), whole) <= FLOAT32_ULPS


def test_half_precision_caches_are_read_as_they_are() -> None:
    """bfloat16 keys under a float32 query: read exactly, and the output is the query's dtype."""
    q, k, v = qkv(2, 6)
    k, v = k.astype(ml_dtypes.bfloat16), v.astype(ml_dtypes.bfloat16)
    actual = attention(q, k, v, start=4)
    assert actual.dtype == np.float32
    assert ulp_error(actual, plain_attention(q, k, v, 4, 0.25)) <= FLOAT32_ULPS

"""Paged attention against attention over contiguous keys, with poison all around."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.ulp import oracle, rounded_once, ulp_error
from reference.formats import Array
from reference.kernels.attention import attention
from reference.kernels.paged_attention import paged_attention
from tests.reference.kernels.helpers import assert_same_bits

FLOAT32_ULPS = 512  # 8 of a row's root mean square, which the measure takes 64 times finer


class Paged:
    """Requests whose keys and values lie scattered over a pool that is otherwise full of NaN."""

    def __init__(self, seed: int, query_lens: list[int], seq_lens: list[int], block_size: int, dtype: Any) -> None:
        rng = np.random.default_rng(seed)
        self.query_lens, self.seq_lens, heads, kv_heads, dim = query_lens, seq_lens, 4, 2, 8
        needed = [-(-length // block_size) for length in seq_lens]
        num_blocks = sum(needed) + 3
        self.block_table = np.full((len(seq_lens), max([*needed, 1]) + 1), -1, np.int32)
        shape = (num_blocks, kv_heads, block_size, dim)
        self.k_cache, self.v_cache = np.full(shape, np.nan, dtype), np.full(shape, np.nan, dtype)
        self.requests = []
        self.query_start = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
        self.q = rng.standard_normal((sum(query_lens), heads, dim)).astype(dtype)
        free = list(rng.permutation(num_blocks))
        for r, length in enumerate(seq_lens):
            k, v = (rng.standard_normal((length, kv_heads, dim)).astype(dtype) for _ in range(2))
            blocks = [free.pop() for _ in range(needed[r])]
            self.block_table[r, : len(blocks)] = blocks
            for position in range(length):
                block, offset = blocks[position // block_size], position % block_size
                self.k_cache[block, :, offset], self.v_cache[block, :, offset] = k[position], v[position]
            self.requests.append((self.q[self.query_start[r] : self.query_start[r + 1]], k, v))

    def arguments(self) -> list[Array]:
        seq_lens = np.array(self.seq_lens, np.int32)
        return [self.q, self.k_cache, self.v_cache, self.block_table, self.query_start, seq_lens]

    def expected(self) -> Array:
        """Each request alone over contiguous keys, in float64."""
        alone = [oracle(attention, q, k, v, start=len(k) - len(q)) for q, k, v in self.requests if len(q)]
        return np.concatenate([np.zeros((0, *self.q.shape[1:])), *alone])


BATCHES = {
    "decode": ([1, 1, 1], [1, 17, 8]),
    "prefill": ([5, 8], [5, 8]),
    "chunk, decode and an idle row": ([6, 1, 0, 3], [20, 9, 4, 3]),
    "an empty row": ([2, 0], [2, 0]),
    "no queries": ([0, 0], [5, 0]),
    "one token": ([1], [1]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_paged_is_contiguous(run: Callable[..., Any], name: str) -> None:
    query_lens, seq_lens = BATCHES[name]
    batch = Paged(0, query_lens, seq_lens, 4, ml_dtypes.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = run(paged_attention, *batch.arguments(), max_query_len=max(query_lens))
    assert actual.dtype == ml_dtypes.bfloat16
    assert ulp_error(actual, batch.expected()) <= rounded_once(actual.dtype, FLOAT32_ULPS)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1, max_size=4),
    block_size=st.integers(1, 9),
    slack=st.integers(0, 3),
)
def test_any_batch_in_any_blocks(seed: int, lengths: list[tuple[int, int]], block_size: int, slack: int) -> None:
    query_lens = [queries for queries, _ in lengths]
    batch = Paged(seed, query_lens, [queries + context for queries, context in lengths], block_size, np.float32)
    actual = paged_attention(*batch.arguments(), max_query_len=max(query_lens) + slack)
    # Values may cancel, as far as one searches: so errors are those of the values, and not of the row that is left.
    largest = max((float(np.abs(v).max(initial=0)) for _, _, v in batch.requests), default=0.0)
    assert np.abs(actual - batch.expected()).max(initial=0.0) <= 16 * 2.0**-23 * largest


def test_rows_beyond_the_last_request_give_zero(run: Callable[..., Any]) -> None:
    batch = Paged(0, [2, 1], [9, 4], 4, ml_dtypes.bfloat16)
    batch.q = np.concatenate([batch.q, np.full((3, *batch.q.shape[1:]), np.nan, batch.q.dtype)])
    actual = run(paged_attention, *batch.arguments(), max_query_len=2)
    assert ulp_error(actual[:3], batch.expected()) <= rounded_once(actual.dtype, FLOAT32_ULPS)
    assert not actual[3:].any()


def test_no_requests_give_zero(run: Callable[..., Any]) -> None:
    batch = Paged(0, [2], [9], 4, np.float32)
    _, k_cache, v_cache, *_ = batch.arguments()
    none = np.zeros(0, np.int32)
    actual = run(
        paged_attention, batch.q, k_cache, v_cache, none.reshape(0, 2), np.zeros(1, np.int32), none, max_query_len=2
    )
    assert not actual.any()


def test_the_poison_works() -> None:
    """The negative control: one step beyond a sequence's end, or a wrong block, is NaN at once."""
    batch = Paged(0, [1], [7], 4, np.float32)
    arguments = batch.arguments()
    assert np.isfinite(paged_attention(*arguments, max_query_len=1)).all()
    longer = [*arguments[:5], np.array([8], np.int32)]
    assert np.isnan(paged_attention(*longer, max_query_len=1)).all()
    unowned = next(b for b in range(len(batch.k_cache)) if b not in batch.block_table)
    elsewhere = [*arguments[:3], np.full_like(batch.block_table, unowned), *arguments[4:]]
    assert np.isnan(paged_attention(*elsewhere, max_query_len=1)).all()


def test_the_scale_is_used_and_defaults_to_one_over_root_d() -> None:
    batch = Paged(0, [2, 1], [9, 4], 4, np.float32)
    default = paged_attention(*batch.arguments(), max_query_len=2)
    assert_same_bits(paged_attention(*batch.arguments(), max_query_len=2, scale=8**-0.5), default)
    assert ulp_error(paged_attention(*batch.arguments(), max_query_len=2, scale=1.0), batch.expected()) > 10000

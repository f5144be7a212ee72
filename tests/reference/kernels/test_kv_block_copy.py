"""Block copies: what is named is copied to the bit, and everything else is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.formats import Array, DType
from reference.kernels.kv_block_copy import kv_block_copy
from tests.reference.kernels.helpers import assert_same_bits, normal

NUM_BLOCKS = 6


def pool(seed: int, num_blocks: int, dtype: Any) -> Array:
    """Blocks [B, 2, 3, 4] that all differ, with NaN of both signs in them."""
    cache = normal(seed, num_blocks, 2, 3, 4, dtype=dtype)
    cache[..., 1] = np.nan
    cache[..., 2] = -cache[..., 1]
    return cache


def plain_copy(cache: Array, pairs: list[tuple[int, int]]) -> Array:
    """The definition, pair by pair."""
    after = cache.copy()
    for source, destination in pairs:
        if source >= 0 and destination >= 0:
            after[destination] = cache[source]
    return after


def check(run: Callable[..., Any], pairs: list[tuple[int, int]], num_blocks: int, dtype: Any) -> None:
    k_cache, v_cache = pool(1, num_blocks, dtype), pool(2, num_blocks, dtype)
    before = k_cache.copy(), v_cache.copy()
    actual = run(kv_block_copy, k_cache, v_cache, np.array(pairs, np.int32).reshape(-1, 2))
    for after, cache, unchanged in zip(actual, (k_cache, v_cache), before, strict=True):
        assert_same_bits(after, plain_copy(cache, pairs))
        assert_same_bits(cache, unchanged)


CASES = {
    "no pairs": [],
    "nothing but padding": [(-1, -1), (-1, -1)],
    "half of a pair is padding": [(-1, 2), (3, -1)],
    "one": [(1, 4)],
    "the last block": [(5, 0), (1, 2)],
    "to the last block": [(0, 5)],
    "one source, several destinations": [(2, 0), (2, 1), (-1, -1), (2, 3)],
    "a block to itself": [(3, 3)],
}


@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(run: Callable[..., Any], dtype: DType, name: str) -> None:
    check(run, CASES[name], NUM_BLOCKS, dtype)


@settings(deadline=None, max_examples=50)
@given(data=st.data(), num_blocks=st.integers(1, 9))
def test_any_legal_pairs_against_the_definition(data: st.DataObject, num_blocks: int) -> None:
    blocks = data.draw(st.permutations(range(num_blocks)))
    num_sources = data.draw(st.integers(0, num_blocks))
    sources, destinations = blocks[:num_sources], blocks[num_sources:]
    pairs = [(data.draw(st.sampled_from([-1, *sources])), destination) for destination in destinations]
    check(lambda kernel, *arrays: kernel(*arrays), pairs, num_blocks, ml_dtypes.bfloat16)


def test_what_an_illegal_call_does_is_as_stated(run: Callable[..., Any]) -> None:
    """A chain reads what was there before; of two pairs with one destination the later stays."""
    cache = normal(0, 4, 1, 1, 2)
    after, _ = run(kv_block_copy, cache, cache, np.array([[0, 1], [1, 2]], np.int32))
    assert_same_bits(after, cache[[0, 0, 1, 3]])
    after, _ = run(kv_block_copy, cache, cache, np.array([[2, 0], [1, 0]], np.int32))
    assert_same_bits(after, cache[[1, 1, 2, 3]])


def test_the_check_sees_one_wrong_block() -> None:
    """The negative control: sources and destinations exchanged."""
    cache = pool(0, NUM_BLOCKS, np.float32)
    exchanged, _ = kv_block_copy(cache, cache, np.array([[4, 1]], np.int32))
    with pytest.raises(AssertionError):
        assert_same_bits(exchanged, plain_copy(cache, [(1, 4)]))

"""KV write: what is named is written, what is opened is cleared, and everything else is kept to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.formats import Array, DType
from reference.kernels.kv_cache import kv_write
from tests.reference.kernels.helpers import assert_same_bits, normal

HEADS, DIM = 2, 4


def poisoned(seed: int, num_blocks: int, block_size: int, dtype: Any) -> Array:
    """A cache full of numbers and NaN of both signs, which must come through unchanged."""
    cache = normal(seed, num_blocks, HEADS, block_size, DIM, dtype=dtype)
    cache[..., 1] = np.nan
    cache[..., 2] = -cache[..., 1]
    return cache


def plain_write(tokens: Array, cache: Array, slot_mapping: Array) -> Array:
    """The definition token by token: blocks are opened first, then tokens are written in order."""
    cache, block_size = cache.copy(), cache.shape[2]
    for slot in slot_mapping:
        if slot >= 0 and slot % block_size == 0:
            cache[slot // block_size] = 0
    for token, slot in zip(tokens, slot_mapping, strict=True):
        if slot >= 0:
            cache[slot // block_size, :, slot % block_size] = token.astype(cache.dtype)
    return cache


def check(run: Callable[..., Any], slots: list[int], num_blocks: int, block_size: int, dtype: Any) -> None:
    slot_mapping = np.array(slots, np.int64)
    k, v = (normal(seed, len(slots), HEADS, DIM, dtype=dtype) for seed in (1, 2))
    k_cache, v_cache = (poisoned(seed, num_blocks, block_size, dtype) for seed in (3, 4))
    before = k_cache.copy(), v_cache.copy()
    actual = run(kv_write, k, v, k_cache, v_cache, slot_mapping)
    assert_same_bits(actual[0], plain_write(k, k_cache, slot_mapping))
    assert_same_bits(actual[1], plain_write(v, v_cache, slot_mapping))
    assert_same_bits(k_cache, before[0])
    assert_same_bits(v_cache, before[1])


CASES = {
    "no tokens": [],
    "nothing but padding": [-1, -1],
    "inside a block": [5, 6],
    "opens a block": [4],
    "opens and fills": [8, 9, 10, 11],
    "opens after it writes": [9, 8],
    "two requests and padding": [2, -1, 4, 5, -1, 12],
    "the last slot": [15],
    "the later of two stays": [6, 6, 5],
    "opens twice": [4, 4],
}


@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(run: Callable[..., Any], dtype: DType, name: str) -> None:
    slots = CASES[name]
    padding = [-1] * (8 - len(slots)) if slots else []  # one shape, so that it compiles once
    check(run, slots + padding, num_blocks=4, block_size=4, dtype=dtype)


@settings(deadline=None, max_examples=100)
@given(data=st.data(), num_blocks=st.integers(1, 5), block_size=st.integers(1, 5))
def test_any_mapping_against_the_definition(data: st.DataObject, num_blocks: int, block_size: int) -> None:
    slots = data.draw(st.lists(st.integers(-1, num_blocks * block_size - 1), max_size=12))
    check(lambda kernel, *arrays: kernel(*arrays), slots, num_blocks, block_size, ml_dtypes.bfloat16)


def test_the_check_sees_an_unopened_block() -> None:
    """The negative control: a write that does not clear what it opens differs from the definition."""
    cache, token = poisoned(0, 2, 4, np.float32), normal(1, 1, HEADS, DIM)
    forgetful = cache.copy()
    forgetful[1, :, 0] = token[0]
    with pytest.raises(AssertionError):
        assert_same_bits(forgetful, plain_write(token, cache, np.array([4])))


def test_padding_spares_the_last_slot(run: Callable[..., Any]) -> None:
    """What a scatter to index -1 would overwrite."""
    k = normal(0, 1, HEADS, DIM)
    cache = poisoned(1, 2, 4, np.float32)
    written, _ = run(kv_write, k, k, cache, cache, np.array([-1], np.int32))
    assert_same_bits(written, cache)


def test_keys_are_rounded_to_the_caches_dtype(run: Callable[..., Any]) -> None:
    k, cache = normal(0, 1, HEADS, DIM), np.zeros((1, HEADS, 4, DIM), ml_dtypes.bfloat16)
    k_cache, _ = run(kv_write, k, k, cache, cache, np.array([2], np.int32))
    assert_same_bits(k_cache[0, :, 2], k[0].astype(ml_dtypes.bfloat16))

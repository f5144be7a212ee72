"""KV memory in place: what is written is what `kv_write` writes, to the bit."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.formats import Array
from reference.kernels.kv_cache import kv_write
from reference.model.kv_memory import SMALL, padded_slots, storage_dtype, values_of, write
from reference.model.padding import bucket_rows
from tests.reference.kernels.helpers import assert_same_bits

BLOCKS, HEADS, BLOCK_SIZE, DIM = 4, 2, 4, 3
TOKENS = 6  # one shape, so that it is compiled once
DTYPES = [np.dtype(dtype) for dtype in (ml_dtypes.bfloat16, np.float16, np.float32)]

written = jax.jit(write)


def any_bits(seed: int, dtype: np.dtype[Any], *shape: int) -> Array:
    """Every pattern of bits: infinities, NaN of both signs with any payload, subnormal numbers."""
    code = np.dtype(f"u{dtype.itemsize}")
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2 ** (8 * dtype.itemsize), shape, code)
    exponent = np.array(np.inf, dtype).view(code)
    return np.where(random.random(shape) < 0.3, bits | exponent, bits).view(dtype)


slots_of_a_call = st.lists(
    st.integers(0, BLOCKS * BLOCK_SIZE - 1) | st.sampled_from([0, 4, 8, 12]), max_size=TOKENS, unique=True
).flatmap(lambda slots: st.permutations([*slots, *[-1] * (TOKENS - len(slots))]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=60)
@given(slots=slots_of_a_call, seed=st.integers(0, 2**32 - 1))
def test_what_is_written_is_what_kv_write_writes(dtype: np.dtype[Any], slots: list[int], seed: int) -> None:
    k, v = (any_bits(seed + i, dtype, TOKENS, HEADS, DIM) for i in (0, 1))
    caches = [any_bits(seed + i, dtype, BLOCKS, HEADS, BLOCK_SIZE, DIM) for i in (2, 3)]
    mapping = np.array(slots, np.int32)
    expected = kv_write(k, v, *caches, mapping)
    memory = tuple(cache.view(storage_dtype(dtype)) for cache in caches)
    actual = written(k, v, memory, padded_slots(mapping, TOKENS, BLOCK_SIZE))
    assert all(one.dtype == storage_dtype(dtype) for one in actual)
    for ours, theirs in zip(values_of(actual, dtype), expected, strict=True):
        assert_same_bits(np.asarray(ours), theirs)


@pytest.mark.parametrize("num_opened", [0, 7, SMALL // 2, SMALL])
def test_many_tokens_may_each_open_a_block(num_opened: int) -> None:
    num_tokens, num_blocks = 2 * SMALL, SMALL + 1
    mapping = np.full(num_tokens, -1, np.int64)
    mapping[num_tokens - num_opened :] = BLOCK_SIZE * np.random.default_rng(0).permutation(num_blocks)[:num_opened]
    k, v = (any_bits(seed, DTYPES[2], num_tokens, HEADS, DIM) for seed in (0, 1))
    caches = [any_bits(seed, DTYPES[2], num_blocks, HEADS, BLOCK_SIZE, DIM) for seed in (2, 3)]
    expected = kv_write(k, v, *caches, mapping)
    actual = written(k, v, tuple(caches), padded_slots(mapping, num_tokens, BLOCK_SIZE))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_same_bits(np.asarray(ours), theirs)


def test_numbers_of_16_bits_are_held_as_bits() -> None:
    assert [storage_dtype(dtype) for dtype in DTYPES] == [np.uint16, np.uint16, np.float32]


def test_the_comparison_sees_one_bit_of_a_nan() -> None:
    """The negative control."""
    cache = any_bits(0, DTYPES[0], BLOCKS, HEADS, BLOCK_SIZE, DIM)
    other = cache.copy()
    place = np.flatnonzero(np.isnan(cache.astype(np.float32)))[0]
    other.view(np.uint16).reshape(-1)[place] ^= 1
    with pytest.raises(AssertionError):
        assert_same_bits(cache, other)


@pytest.mark.parametrize("num_rows", [65, 96, 200])
def test_a_decode_step_has_one_shape_however_many_rows_open_a_block(num_rows: int) -> None:
    """Else the step in which the samples of one prompt all open a block compiles the model anew."""
    length = bucket_rows(num_rows)
    none, every = np.arange(num_rows) * 16 + 1, np.arange(num_rows) * 16
    shapes = {len(padded_slots(slots, length, 16, all_may_open=True).opened) for slots in (none, every)}
    assert shapes == {length}

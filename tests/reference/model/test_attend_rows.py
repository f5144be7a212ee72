"""Attention in groups of rows gives what `paged_attention` gives of the whole batch."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.kernels.paged_attention import paged_attention
from reference.model.attend_rows import ROWS_AT_ONCE, attend_rows, bucket_group, row_groups, widths
from reference.serving.runner import Batch
from tests.reference.model.batches import Fed, batch_of

BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 4, 64, 96
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


@cache
def compiled() -> tuple:
    return jax.jit(attend_rows, static_argnums=4), jax.jit(paged_attention, static_argnames="max_query_len")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Rows of any lengths in blocks of their own, rows of one token first."""
    rows = draw(st.lists(st.tuples(st.integers(0, MAX_LEN - 1), st.integers(1, 24)), min_size=1, max_size=12))
    decodes = draw(st.integers(0, len(rows)))
    free = list(draw(st.permutations(range(NUM_BLOCKS))))
    fed = []
    for number, (before, length) in enumerate(rows):
        count = 1 if number < decodes else max(2, length)
        computed = min(before, MAX_LEN - count)
        num_blocks = -(-(computed + count) // BLOCK_SIZE)
        if num_blocks > len(free):
            break
        fed.append((Fed([1] * (computed + count), [free.pop() for _ in range(num_blocks)], computed), count))
    return batch_of(fed, BLOCK_SIZE)


def poisoned_memory(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the rows' tokens; NaN everywhere else."""
    random = np.random.default_rng(0)
    shape = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    memory = tuple(np.full(shape, np.nan, np.float32) for _ in range(2))
    for length, table in zip(batch.seq_lens.tolist(), batch.block_table, strict=True):
        for position in range(length):
            for cache_ in memory:
                where = (table[position // BLOCK_SIZE], slice(None), position % BLOCK_SIZE)
                cache_[where] = random.normal(size=(KV_HEADS, HEAD_DIM))
    return memory


@settings(max_examples=40, deadline=None)
@given(batches())
def test_it_is_the_attention_of_the_whole_batch(batch: Batch) -> None:
    attend, whole = compiled()
    q = np.random.default_rng(1).normal(size=(288, HEADS, HEAD_DIM)).astype(np.float32)
    memory = poisoned_memory(batch)
    attended = np.zeros_like(q)
    for group, max_query_len in row_groups(batch, BLOCK_SIZE, MAX_LEN):
        attended = attend(q, memory, group, attended, max_query_len)
    # Padded to one shape, so that the comparison is compiled once.
    table = np.full((12, MAX_LEN // BLOCK_SIZE), -1, np.int32)
    table[: batch.num_rows, : batch.block_table.shape[1]] = batch.block_table
    start = np.pad(batch.query_start, (0, 12 - batch.num_rows), mode="edge")
    seq_lens = np.pad(batch.seq_lens, (0, 12 - batch.num_rows))
    expected = np.asarray(whole(q, *memory, table, start, seq_lens, max_query_len=24))
    np.testing.assert_allclose(attended, expected, rtol=0, atol=2e-6)
    assert expected[: batch.num_tokens].any(axis=(1, 2)).all(), "attention of nothing was compared"


@settings(max_examples=200, deadline=None)
@given(batches())
def test_every_row_is_in_one_group_and_its_blocks_fit(batch: Batch) -> None:
    firsts = []
    for group, max_query_len in row_groups(batch, BLOCK_SIZE, MAX_LEN):
        count, num_rows = group.count, int(group.num_rows)
        assert (count[:num_rows] > 0).all() and (count[:num_rows] <= max_query_len).all()
        assert not count[num_rows:].any() and not group.seq_len[num_rows:].any()
        assert max_query_len == 1 or (count[:num_rows] > 1).all()
        held = np.array(widths(max_query_len, group.block_table.shape[1]))[group.step] * BLOCK_SIZE
        assert (group.seq_len <= held).all()
        assert (np.diff(group.step[:num_rows]) >= 0).all(), "neighbours are of similar length"
        firsts += group.first[:num_rows].tolist()
    assert sorted(firsts) == batch.query_start[:-1].tolist()


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8, 9, 64, 65, 512, 1000])
def test_groups_are_padded_to_few_numbers_of_rows(num_rows: int) -> None:
    length = bucket_group(num_rows)
    assert num_rows <= length == bucket_group(length)
    assert length % ROWS_AT_ONCE == 0 or ROWS_AT_ONCE % length == 0


@pytest.mark.parametrize("max_blocks", [4, 8, 256, 4096])
def test_widths_of_rows_of_one_token_are_powers_of_two(max_blocks: int) -> None:
    steps = widths(1, max_blocks)
    assert steps[0] == 4 and steps[-1] == max_blocks and all(wide == 2 * narrow for narrow, wide in pairwise(steps))
    assert widths(16, max_blocks) == [max_blocks]

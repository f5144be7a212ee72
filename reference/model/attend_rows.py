"""Attention over paged KV memory, in groups of rows that are padded to one shape, a few rows at a time.

A short row is not padded to a long one, and what a few rows read fits a processor's cache, where all rows at once do
not. Few shapes occur. Rows of one token (decode) are one group whatever their lengths: the widths to which their block
tables are cut are compiled into the loop over the rows. Longer rows make a group for each padded number of tokens and
of blocks. Padding to a number of rows costs no work: the loop ends with the last row.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from reference.formats import Array
from reference.kernels.paged_attention import paged_attention
from reference.model.kv_memory import KeysValues, values_of
from reference.model.padding import bucket_blocks, padded
from reference.model.runner import bucket_length
from reference.serving.runner import Batch

ROWS_AT_ONCE = 8  # of one token each; longer rows are attended one at a time


class RowGroup(NamedTuple):
    """Rows with one padded number of tokens, and of similar length if they are neighbours. Padding comes last: its
    count and seq_len are 0."""

    first: Array  # i32 [R], a row's first token in the batch
    count: Array  # i32 [R], its tokens
    seq_len: Array  # i32 [R], its keys, those of its tokens included
    block_table: Array  # i32 [R, M], -1 pads
    step: Array  # i32 [R], which of `widths` of the group holds a row's blocks
    num_rows: Array  # i32 scalar, without padding


def row_groups(batch: Batch, block_size: int, max_model_len: int) -> list[tuple[RowGroup, int]]:
    """All rows of a batch in groups, rows of one token first; and the padded number of tokens of each group's rows."""
    counts, num_decodes = np.diff(batch.query_start), batch.num_decode_rows
    num_blocks = -(-batch.seq_lens // block_size)
    of_shape: dict[tuple[int, int], list[int]] = {}
    if num_decodes:
        widest = bucket_blocks(-(-max_model_len // block_size))
        of_shape[1, widest] = np.argsort(num_blocks[:num_decodes], kind="stable").tolist()
    for row in range(num_decodes, batch.num_rows):
        of_shape.setdefault((bucket_length(int(counts[row])), bucket_blocks(int(num_blocks[row]))), []).append(row)

    def group(rows: list[int], max_query_len: int, max_blocks: int) -> RowGroup:
        length = bucket_group(len(rows))
        table = np.full((length, max_blocks), -1, np.int32)
        used = min(max_blocks, batch.block_table.shape[1])
        table[: len(rows), :used] = batch.block_table[rows, :used]
        step = np.searchsorted(widths(max_query_len, max_blocks), num_blocks[rows])
        columns = (batch.query_start[rows], counts[rows], batch.seq_lens[rows], step)
        first, count, seq_len, step = (padded(column.astype(np.int32), length, 0) for column in columns)
        return RowGroup(first, count, seq_len, table, step, np.int32(len(rows)))

    return [(group(rows, *shape), shape[0]) for shape, rows in of_shape.items()]


def bucket_group(num_rows: int) -> int:
    """The padded number of rows: 1, 2, 4, 8, 64, 512, ..."""
    length = min(ROWS_AT_ONCE, 1 << (num_rows - 1).bit_length())
    while length < num_rows:
        length *= ROWS_AT_ONCE
    return length


def widths(max_query_len: int, max_blocks: int) -> list[int]:
    """To how many columns the block tables of a group may be cut: powers of two, for rows of one token."""
    if max_query_len > 1:
        return [max_blocks]
    return sorted({bucket_blocks(1 << power) for power in range(max_blocks.bit_length())})


def attend_rows(
    q: Array,  # [T, Nq, D]
    memory: KeysValues,
    group: RowGroup,
    attended: Array,  # [T, Nq, D]
    max_query_len: int,
) -> Array:  # [T, Nq, D]: `attended`, with `paged_attention` of the group's tokens in their places
    at_once = min(ROWS_AT_ONCE, len(group.first)) if max_query_len == 1 else 1
    column = jnp.arange(max_query_len, dtype=jnp.int32)

    def attend(width: int, queries: Array, count: Array, seq_len: Array, block_table: Array) -> Array:
        # Queries stand one after another: either a row has no more than one, or there is no other row.
        query_start = jnp.concat([jnp.zeros(1, jnp.int32), jnp.cumsum(count, dtype=jnp.int32)])
        table = block_table[:, :width]
        # Here, where XLA reads only the table's blocks: outside it makes numbers of the whole memory, each step.
        values = values_of(memory, q.dtype)
        return paged_attention(queries, *values, table, query_start, seq_len, max_query_len=max_query_len)

    branches = [partial(attend, width) for width in widths(max_query_len, group.block_table.shape[1])]

    def attend_next(number: Array, attended: Array) -> Array:
        index = number * at_once + jnp.arange(at_once)
        first, count, seq_len, block_table, step = (values[index] for values in group[:-1])
        token = jnp.where(column < count[:, None], first[:, None] + column, len(q)).reshape(-1)
        queries = q.at[token].get(mode="fill", fill_value=0)
        out = jax.lax.switch(jnp.max(step), branches, queries, count, seq_len, block_table)
        return attended.at[token].set(out, mode="drop")

    return jax.lax.fori_loop(0, -(-group.num_rows // at_once), attend_next, attended)

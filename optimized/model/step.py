"""The arrays of a batch as the panel's kernels read them: pure functions of the batch, on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optimized.device import Tensor, part_of
from optimized.kernels.paged_attention_launch import MOST_QUERIES
from optimized.model.layer import RowGroup
from reference.serving.runner import Batch


@dataclass(frozen=True)
class Group:
    """A `RowGroup` before its arrays are on the device."""

    first_row: int
    num_rows: int
    first_token: int
    num_tokens: int
    max_query_len: int


def groups_of(query_start: np.ndarray) -> list[Group]:
    """Rows of one token come first, and attend together; then those of a few, up to the first of many; then the rest.

    query_start: i32 [R + 1].
    """
    lens = np.diff(query_start)
    ends = [int((lens == 1).cumprod().sum())]
    ends.append(ends[0] + int((lens[ends[0] :] <= MOST_QUERIES).cumprod().sum()))
    ends.append(len(lens))
    groups = []
    for first, end in zip([0, *ends], ends, strict=False):
        if first < end:
            tokens = int(query_start[first]), int(query_start[end])
            groups.append(Group(first, end - first, tokens[0], tokens[1] - tokens[0], int(lens[first:end].max())))
    return groups


def arrays_of(batch: Batch, groups: list[Group], row_of: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """What is put on the device for the layers. row_of: see `named_by`. width: blocks of the longest sequence there may
    be. All tables have as many columns, because which attention is launched follows from that."""
    table = np.full((batch.num_rows, width), -1, np.int32)
    table[:, : batch.block_table.shape[1]] = batch.block_table
    arrays = {
        "token_ids": named_by(batch.token_ids, row_of),
        "positions": batch.positions,
        "slots": batch.slot_mapping.astype(np.int32),
        "seq_lens": batch.seq_lens,
        "block_table": table,
    }
    for number, group in enumerate(groups):
        rows = slice(group.first_row, group.first_row + group.num_rows + 1)
        arrays[f"query_start.{number}"] = batch.query_start[rows] - batch.query_start[group.first_row]
    return arrays


def row_groups(groups: list[Group], tensors: Mapping[str, Tensor]) -> tuple[RowGroup, ...]:
    seq_lens, table = tensors["seq_lens"], tensors["block_table"]
    width = table.shape[1]
    return tuple(
        RowGroup(
            group.first_token,
            group.num_tokens,
            group.max_query_len,
            tensors[f"query_start.{number}"],
            part_of(seq_lens, (group.num_rows,), (1,), group.first_row),
            part_of(table, (group.num_rows, width), (width, 1), group.first_row * width),
        )
        for number, group in enumerate(groups)
    )


def rows_sampled(batch: Batch) -> np.ndarray:  # i32 [R]
    """Of each row of a batch, its number among those that sample; -1 if it does not."""
    samples = batch.sampling.samples
    return np.where(samples, np.cumsum(samples) - 1, -1).astype(np.int32)


def named_by(token_ids: np.ndarray, row_of: np.ndarray) -> np.ndarray:
    """Tokens of the previous batch (-1 - row) by their number among those that it sampled, which is where they are on
    the device. row_of: `rows_sampled` of that batch. Errors: ValueError for a row that did not sample."""
    unknown = token_ids < 0
    if not unknown.any():
        return token_ids
    rows = -1 - token_ids[unknown]
    if rows.max() >= len(row_of) or (row_of[rows] < 0).any():
        raise ValueError(f"a batch names tokens of rows {sorted(set(rows.tolist()))}, of which one sampled none before")
    named = token_ids.copy()
    named[unknown] = -1 - row_of[rows]
    return named

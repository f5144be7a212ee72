"""Batches made by hand: sequences whose tokens are fed to a runner a few at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.serving.runner import Batch, Sampling


@dataclass
class Fed:
    """A sequence, the blocks that hold it, and how much of it a runner has been given."""

    token_ids: list[int]  # -1 - r: what row r of the previous batch sampled
    blocks: list[int]
    num_computed: int = 0


def greedy(samples: Sequence[bool], **columns: Any) -> Sampling:
    """Rows at temperature 0 without anything else, but for the columns that are given."""
    count = len(samples)
    plain = {
        "samples": np.array(samples, np.bool_),
        "temperature": np.zeros(count, np.float32),
        "top_k": np.zeros(count, np.int32),
        "top_p": np.ones(count, np.float32),
        "min_p": np.zeros(count, np.float32),
        "repetition_penalty": np.ones(count, np.float32),
        "presence_penalty": np.zeros(count, np.float32),
        "frequency_penalty": np.zeros(count, np.float32),
        "seed": np.zeros((count, 2), np.uint32),
        "sample_index": np.zeros(count, np.int32),
        "num_logprobs": np.full(count, -1, np.int32),
        "history": np.empty(0, np.int32),
        "history_start": np.zeros(count + 1, np.int32),
        "prompt_lens": np.zeros(count, np.int32),
        "bias_ids": np.empty((count, 0), np.int32),
        "bias": np.empty((count, 0), np.float32),
        "banned_ids": np.empty((count, 0), np.int32),
        "mask": np.empty((0, 1), np.uint32),
        "mask_row": np.full(count, -1, np.int32),
    }
    return Sampling(**(plain | columns))


def batch_of(rows: Sequence[tuple[Fed, int]], block_size: int, *, num_top: int | None = None, **columns: Any) -> Batch:
    """The next tokens of some sequences, which count as computed from here on. A row that ends with the last token of
    its sequence samples.

    num_top: score every token that has one after it by that one, with so many of the likeliest. columns: of `greedy`.
    """
    token_ids, positions, slots, index, target = [], [], [], [], []
    start, seq_lens, samples = [0], [], []
    for fed, count in rows:
        first, end = fed.num_computed, fed.num_computed + count
        for position in range(first, end):
            if num_top is not None and position + 1 < len(fed.token_ids):
                index.append(len(token_ids))
                target.append(fed.token_ids[position + 1])
            token_ids.append(fed.token_ids[position])
            positions.append(position)
            slots.append(fed.blocks[position // block_size] * block_size + position % block_size)
        fed.num_computed = end
        start.append(len(token_ids))
        seq_lens.append(end)
        samples.append(end == len(fed.token_ids))
    width = max(len(fed.blocks) for fed, _ in rows)
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        query_start=np.array(start, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        block_table=np.array([fed.blocks + [-1] * (width - len(fed.blocks)) for fed, _ in rows], np.int32),
        slot_mapping=np.array(slots, np.int64),
        sampling=greedy(samples, **columns),
        score_index=np.array(index, np.int32),
        score_target=np.array(target, np.int32),
        score_num_top=num_top or 0,
    )

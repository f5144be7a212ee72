"""Steps that are taken before any request comes: what is compiled, loaded or captured at first use, is so then.

They are batches as an engine submits them, whose keys and values nobody will read: blocks are cleared as they open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reference.serving.runner import Batch, Sampling

PROMPT = 16  # tokens of one beside rows that decode


def counts(most: int) -> Iterator[int]:
    """Powers of two, and the most."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def step_of(lengths: Sequence[int], block_size: int, **columns: np.ndarray) -> Batch:
    """Prompts of so many tokens, in blocks one after another. columns: of their sampling."""
    num_blocks = [-(-length // block_size) for length in lengths]
    table = np.full((len(lengths), max(num_blocks)), -1, np.int32)
    first, slots = 0, []
    for row, (length, count) in enumerate(zip(lengths, num_blocks, strict=True)):
        table[row, :count] = range(first, first + count)
        slots.append(first * block_size + np.arange(length))
        first += count
    return Batch(
        token_ids=np.zeros(sum(lengths), np.int32),
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        query_start=np.cumsum([0, *lengths], dtype=np.int32),
        seq_lens=np.array(lengths, np.int32),
        block_table=table,
        slot_mapping=np.concatenate(slots).astype(np.int64),
        sampling=_sampling(len(lengths), **columns),
        score_index=np.empty(0, np.int32),
        score_target=np.empty(0, np.int32),
    )


def mixed_steps(max_rows: int, block_size: int, num_blocks: int) -> Iterator[Batch]:
    """Rows of one token beside a prompt, as they come while others decode."""
    for count in counts(max(1, min(max_rows, num_blocks) - 1)):
        if count - (-PROMPT // block_size) <= num_blocks:
            yield step_of([1] * count + [PROMPT], block_size)


def sampled_steps(block_size: int) -> Iterator[Batch]:
    """One token, chosen in each way that has kernels of its own, and one that is scored."""
    one = np.ones(1, np.float32)
    forbids: dict[str, Any] = {"banned_ids": np.ones((1, 1), np.int32)}
    history = {"history": np.zeros(1, np.int32), "history_start": np.array([0, 1], np.int32)}
    penalty: dict[str, Any] = {"presence_penalty": one, **history}
    for temperature in (0 * one, one):
        for more in ({}, forbids, penalty, forbids | penalty):
            yield step_of([1], block_size, temperature=temperature, **more)
    yield step_of([1], block_size, temperature=one, top_k=np.full(1, 20, np.int32))
    yield step_of([1], block_size, temperature=one, top_p=one / 2)
    for num_top in (0, 1):
        yield step_of([1], block_size, num_logprobs=np.full(1, num_top, np.int32))
        scored: dict[str, Any] = {"score_index": np.zeros(1, np.int32), "score_target": np.zeros(1, np.int32)}
        yield replace(step_of([2], block_size), **scored, score_num_top=num_top)


def _sampling(rows: int, **columns: np.ndarray) -> Sampling:
    """Greedy but for the columns that are given."""
    plain = {
        "samples": np.ones(rows, np.bool_),
        **dict.fromkeys(("temperature", "min_p", "presence_penalty", "frequency_penalty"), np.zeros(rows, np.float32)),
        **dict.fromkeys(("top_p", "repetition_penalty"), np.ones(rows, np.float32)),
        **dict.fromkeys(("top_k", "sample_index", "prompt_lens"), np.zeros(rows, np.int32)),
        **dict.fromkeys(("num_logprobs", "mask_row"), np.full(rows, -1, np.int32)),
        "seed": np.zeros((rows, 2), np.uint32),
        "history": np.empty(0, np.int32),
        "history_start": np.zeros(rows + 1, np.int32),
        **dict.fromkeys(("bias_ids", "banned_ids"), np.empty((rows, 0), np.int32)),
        "bias": np.empty((rows, 0), np.float32),
        "mask": np.empty((0, 1), np.uint32),
    }
    return Sampling(**plain | columns)

"""Steps that are taken before any request comes: what is compiled, loaded or captured at first use, is so then.

They are batches as an engine submits them, whose keys and values nobody will read: blocks are cleared as they open.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from reference.serving.runner import Batch, Sampling


def token_counts(most: int) -> Iterator[int]:
    """Of prompts: powers of two, and the most."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def prompt_step(num_tokens: int, block_size: int, **columns: np.ndarray) -> Batch:
    """The prompt of one request, in the first blocks. columns: of its sampling."""
    positions = np.arange(num_tokens, dtype=np.int32)
    return Batch(
        token_ids=np.zeros(num_tokens, np.int32),
        positions=positions,
        query_start=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        block_table=np.arange(-(-num_tokens // block_size), dtype=np.int32)[None],
        slot_mapping=positions.astype(np.int64),
        sampling=_sampling(**columns),
        score_index=np.empty(0, np.int32),
        score_target=np.empty(0, np.int32),
    )


def sampled_steps(block_size: int) -> Iterator[Batch]:
    """One token, chosen in each way that has kernels of its own."""
    one = np.ones(1, np.float32)
    yield prompt_step(1, block_size, temperature=one)
    yield prompt_step(1, block_size, temperature=one, top_k=np.full(1, 20, np.int32))
    yield prompt_step(1, block_size, temperature=one, top_p=one / 2)
    yield prompt_step(1, block_size, num_logprobs=np.zeros(1, np.int32))
    yield prompt_step(1, block_size, num_logprobs=np.ones(1, np.int32))
    history = {"history": np.zeros(1, np.int32), "history_start": np.array([0, 1], np.int32)}
    yield prompt_step(1, block_size, temperature=one, presence_penalty=one, **history)


def _sampling(**columns: np.ndarray) -> Sampling:
    """Of one row, greedy but for the columns that are given."""
    plain = {
        "samples": np.ones(1, np.bool_),
        **dict.fromkeys(("temperature", "min_p", "presence_penalty", "frequency_penalty"), np.zeros(1, np.float32)),
        **dict.fromkeys(("top_p", "repetition_penalty"), np.ones(1, np.float32)),
        **dict.fromkeys(("top_k", "sample_index", "prompt_lens"), np.zeros(1, np.int32)),
        **dict.fromkeys(("num_logprobs", "mask_row"), np.full(1, -1, np.int32)),
        "seed": np.zeros((1, 2), np.uint32),
        "history": np.empty(0, np.int32),
        "history_start": np.zeros(2, np.int32),
        **dict.fromkeys(("bias_ids", "banned_ids"), np.empty((1, 0), np.int32)),
        "bias": np.empty((1, 0), np.float32),
        "mask": np.empty((0, 1), np.uint32),
    }
    return Sampling(**plain | columns)

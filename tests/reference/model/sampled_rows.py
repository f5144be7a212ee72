"""Rows that sample, as a batch has them: what is specified of each, and how each runner samples them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference.model.padding import bucket_rows, padded_rows
from reference.model.paged_runner import _compiled, _known
from reference.model.sample_rows import SamplingRows, Stages, rows_that_sample, sample_rows
from reference.serving.request import SamplingParams
from reference.serving.runner import NOTHING_ALLOWED, UNUSABLE_LOGITS, Sampling
from reference.serving.sample import sample_token
from reference.serving.usable import UnusableLogits
from tests.reference.model.logits import NUM_TOKEN_IDS

INT32_MAX = 2**31 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)

ALL = {"adjusts": True, "draws": True, "limits": True}  # one choice of stages, so that few things are compiled


@dataclass(frozen=True)
class Row:
    """What one row of a batch samples from."""

    logits: np.ndarray  # f32 [V]
    params: SamplingParams = field(default_factory=SamplingParams)
    prompt: tuple[int, ...] = (1,)
    output: tuple[int, ...] = ()
    sample_index: int = 0
    banned: tuple[int, ...] = ()  # beside the padding of the vocabulary
    samples: bool = True
    pending: bool = False  # the last token of the output was sampled by the batch before


def expected(row: Row, num_token_ids: int) -> int:
    """The specification's token."""
    try:
        return sample_token(
            row.logits,
            row.prompt,
            row.output,
            row.params,
            sample_index=row.sample_index,
            banned_token_ids={*row.banned, *range(num_token_ids, len(row.logits))},
        )
    except UnusableLogits as error:
        return NOTHING_ALLOWED if "probability 0" in str(error) else UNUSABLE_LOGITS


def bits_of(token_ids: Sequence[int], num_token_ids: int) -> np.ndarray:  # u32 [W]
    words = np.zeros(-(-num_token_ids // 32), np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def sampling_of(rows: Sequence[Row], num_token_ids: int) -> tuple[Sampling, np.ndarray, np.ndarray]:
    """The rows as a batch has them, its `seq_lens`, and what the rows of the batch before sampled."""

    def column(name: str, dtype: type, largest: float) -> np.ndarray:
        return np.array([min(getattr(row.params, name), largest) for row in rows], dtype)

    def padded(lists: list[list[Any]], padding: Any, dtype: type) -> np.ndarray:
        width = max(map(len, lists), default=0)
        return np.array([[*one, *[padding] * (width - len(one))] for one in lists], dtype).reshape(len(rows), width)

    floats = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    previous = np.full(len(rows), 77, np.int32)
    history: list[int] = []
    start = [0]
    prompt_lens = []
    for number, row in enumerate(rows):
        before = len(rows) - 1 - number  # the row had another place in that batch
        tokens = [*row.prompt, *row.output]
        if row.pending:
            previous[before] = tokens[-1]
            tokens[-1] = -1 - before
        penalties = row.params.repetition_penalty, row.params.presence_penalty, row.params.frequency_penalty
        history += tokens if penalties != (1, 0, 0) else []
        prompt_lens.append(len(row.prompt))
        start.append(len(history))
    masked = [row.samples and row.params.allowed_token_ids is not None for row in rows]
    masks = [
        bits_of(row.params.allowed_token_ids or (), num_token_ids) for row, has in zip(rows, masked, strict=True) if has
    ]
    sampling = Sampling(
        samples=np.array([row.samples for row in rows]),
        **{name: column(name, np.float32, FLOAT32_MAX) for name in floats},
        top_k=column("top_k", np.int32, INT32_MAX),
        seed=np.array([[row.params.seed & 0xFFFFFFFF, row.params.seed >> 32] for row in rows], np.uint32),
        sample_index=np.array([row.sample_index for row in rows], np.int32),
        num_logprobs=np.full(len(rows), -1, np.int32),
        history=np.array(history, np.int32),
        history_start=np.array(start, np.int32),
        prompt_lens=np.array(prompt_lens, np.int32),
        bias_ids=padded([[*row.params.logit_bias.keys()] for row in rows], -1, np.int32),
        bias=padded([[*row.params.logit_bias.values()] for row in rows], 0, np.float32),
        banned_ids=padded([[*row.banned] for row in rows], -1, np.int32),
        mask=np.stack(masks) if masks else np.empty((0, -(-num_token_ids // 32)), np.uint32),
        mask_row=np.where(masked, np.cumsum(masked) - 1, -1).astype(np.int32),
    )
    seq_lens = np.array([len(row.prompt) + len(row.output) for row in rows], np.int32)
    return sampling, seq_lens, previous


Run = Callable[[np.ndarray, SamplingRows, Stages, np.ndarray, int], np.ndarray]


def with_numpy(
    logits: np.ndarray, rows: SamplingRows, stages: Stages, previous: np.ndarray, num_token_ids: int
) -> np.ndarray:
    """As `HistoryRunner` runs it: all logits are candidates."""
    history = np.where(rows.history < 0, previous[np.maximum(-1 - rows.history, 0)], rows.history)
    whole = stages._replace(candidates=logits.shape[1])
    return sample_rows(logits, rows._replace(history=history), whole, num_token_ids)


def compiled(
    logits: np.ndarray, rows: SamplingRows, stages: Stages, previous: np.ndarray, num_token_ids: int
) -> np.ndarray:
    """As `PagedRunner` runs it, on padded rows, the logits of which are NaN here."""
    num_rows = bucket_rows(len(logits))
    padded = np.full((num_rows, logits.shape[1]), np.nan, np.float32)
    padded[: len(logits)] = logits
    rows = _further_padded(padded_rows(rows, stages, num_rows), num_rows)
    rows = rows._replace(history=_compiled(_known, rows.history, previous))
    return np.asarray(sample_rows(padded, rows, stages, num_token_ids, run=_compiled))[: len(logits)]


def _further_padded(rows: SamplingRows, num_rows: int) -> SamplingRows:
    """To one shape whatever the rows are, so that each function is compiled once."""
    more = 256 - len(rows.history)
    return rows._replace(
        history=np.pad(rows.history, (0, more)),
        history_row=np.pad(rows.history_row, (0, more), constant_values=num_rows),
        history_is_prompt=np.pad(rows.history_is_prompt, (0, more)),
        mask=np.pad(rows.mask, ((0, num_rows - len(rows.mask)), (0, 0))),
    )


def check(rows: Sequence[Row], run: Run, num_token_ids: int = NUM_TOKEN_IDS, **stages: Any) -> None:
    """Each row that samples gives the specified token. stages: what is to differ from what the rows need."""
    sampling, seq_lens, previous = sampling_of(rows, num_token_ids)
    arrays, needed = rows_that_sample(sampling, seq_lens)
    logits = np.stack([row.logits for row in rows if row.samples])
    actual = run(logits, arrays, needed._replace(**stages), previous, num_token_ids)
    assert actual.dtype == np.int32
    assert actual.tolist() == [expected(row, num_token_ids) for row in rows if row.samples]


def eight(params: dict[str, Any], logits: Callable[[int], np.ndarray], **row: Any) -> list[Row]:
    return [Row(logits(seed), SamplingParams(seed=seed, **params), **row) for seed in range(8)]

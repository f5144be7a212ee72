"""Sampling for the rows of a batch: the chain of `reference/serving/sample.py`, many rows at once.

One text for NumPy and under `jax.jit`. A stage that no row of a batch uses is left out, which changes no token: each
stage leaves the logits of rows that do not use it as they are. Where every row is greedy, so is the batch: temperature,
top-k, top-p and min-p all keep the largest logit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from array_api_extra import at

from reference.formats import Array
from reference.kernels.sampling import (
    add_logit_bias,
    apply_temperature,
    draw,
    greedy,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    mask_tokens,
    penalize,
)
from reference.serving.runner import NOTHING_ALLOWED, UNUSABLE_LOGITS, Sampling


class Stages(NamedTuple):
    """Which stages a batch uses: what a compiled function is specialized on."""

    penalties: bool
    bias: bool
    bans: bool
    masks: bool
    draws: bool  # any temperature above 0
    top_k: bool
    top_p: bool
    min_p: bool


class SamplingRows(NamedTuple):
    """`Sampling`, of the rows that sample, as arrays that can be padded to any number of rows."""

    position: Array  # i32 [R]
    temperature: Array  # f32 [R]
    top_k: Array  # i32 [R]
    top_p: Array  # f32 [R]
    min_p: Array  # f32 [R]
    repetition: Array  # f32 [R]
    presence: Array  # f32 [R]
    frequency: Array  # f32 [R]
    seed: Array  # u32 [R, 2]
    sample_index: Array  # i32 [R]
    history: Array  # i32 [H]
    history_row: Array  # i32 [H]: whose it is; R or more is nobody's
    history_is_prompt: Array  # bool [H]
    bias_ids: Array  # i32 [R, B]
    bias: Array  # f32 [R, B]
    banned_ids: Array  # i32 [R, N]
    mask: Array  # u32 [M, W]
    mask_row: Array  # i32 [R]


def rows_that_sample(sampling: Sampling, seq_lens: np.ndarray) -> tuple[SamplingRows, Stages]:
    """The rows of a batch that sample, in order, and what they use."""
    rows = np.flatnonzero(sampling.samples)
    lens = np.diff(sampling.history_start)
    owner = np.cumsum(sampling.samples) - 1  # of each row of the batch: its number among those that sample
    history_row = np.repeat(owner, lens).astype(np.int32)
    place = np.arange(len(sampling.history)) - np.repeat(sampling.history_start[:-1], lens)
    arrays = SamplingRows(
        position=seq_lens[rows],
        temperature=sampling.temperature[rows],
        top_k=sampling.top_k[rows],
        top_p=sampling.top_p[rows],
        min_p=sampling.min_p[rows],
        repetition=sampling.repetition_penalty[rows],
        presence=sampling.presence_penalty[rows],
        frequency=sampling.frequency_penalty[rows],
        seed=sampling.seed[rows],
        sample_index=sampling.sample_index[rows],
        history=sampling.history,
        history_row=history_row,
        history_is_prompt=place < np.repeat(sampling.prompt_lens, lens),
        bias_ids=sampling.bias_ids[rows],
        bias=sampling.bias[rows],
        banned_ids=sampling.banned_ids[rows],
        mask=sampling.mask,
        mask_row=sampling.mask_row[rows],
    )
    draws = arrays.temperature > 0
    stages = Stages(
        penalties=len(arrays.history) > 0,
        bias=bool((arrays.bias_ids >= 0).any()),
        bans=bool((arrays.banned_ids >= 0).any()),
        masks=bool((arrays.mask_row >= 0).any()),
        draws=bool(draws.any()),
        top_k=bool((draws & (arrays.top_k > 0)).any()),
        top_p=bool((draws & (arrays.top_p < 1)).any()),
        min_p=bool((draws & (arrays.min_p > 0)).any()),
    )
    return arrays, stages


def sample_rows(
    logits: Array,  # f32 [R, V], as the model gave them
    rows: SamplingRows,
    stages: Stages,
    num_token_ids: int,  # ids from here on are padding of the vocabulary, and never sampled
) -> Array:  # i32 [R]; negative as in `StepOutput`
    xp = logits.__array_namespace__()
    vocab_size = logits.shape[1]
    usable = xp.isfinite(xp.max(logits, axis=-1))
    if stages.penalties:
        logits = _penalized(logits, rows)
    if stages.bias:
        logits = add_logit_bias(logits, rows.bias_ids, rows.bias)
    if stages.bans or stages.masks or num_token_ids < vocab_size:
        logits = mask_tokens(logits, _allowed(logits, rows, stages, num_token_ids))
    if stages.draws:
        logits = apply_temperature(logits, rows.temperature)
        if stages.top_k:
            logits = keep_top_k(logits, xp.clip(rows.top_k, 0, vocab_size))
        if stages.top_p:
            logits = keep_top_p(logits, rows.top_p)
        if stages.min_p:
            logits = keep_min_p(logits, rows.min_p)
        token_ids = draw(logits, rows.temperature, rows.seed, rows.position, rows.sample_index)
    else:
        token_ids = greedy(logits)
    token_ids = xp.where(token_ids < 0, NOTHING_ALLOWED, token_ids)
    return xp.astype(xp.where(usable, token_ids, UNUSABLE_LOGITS), xp.int32)


def _penalized(logits: Array, rows: SamplingRows) -> Array:
    xp = logits.__array_namespace__()
    num_rows, vocab_size = logits.shape
    # Padding of the history, and a sampled token that was an error, land in a row of their own.
    row = xp.where((rows.history_row < num_rows) & (rows.history >= 0), rows.history_row, num_rows)
    index = (row, xp.clip(rows.history, 0, vocab_size - 1))
    counts = xp.zeros((num_rows + 1, vocab_size), dtype=xp.int32)
    is_prompt = rows.history_is_prompt
    of_prompt = at(counts, index).add(xp.astype(is_prompt, xp.int32))[:num_rows] > 0
    of_output = at(counts, index).add(xp.astype(~is_prompt, xp.int32))[:num_rows]
    return penalize(
        logits,
        of_prompt,
        of_output,
        repetition=rows.repetition,
        presence=rows.presence,
        frequency=rows.frequency,
    )


def _allowed(logits: Array, rows: SamplingRows, stages: Stages, num_token_ids: int) -> Array:  # bool [R, V]
    xp = logits.__array_namespace__()
    num_rows, vocab_size = logits.shape
    ids = xp.arange(vocab_size, dtype=xp.int32)
    allowed = xp.broadcast_to(ids < num_token_ids, (num_rows, vocab_size))
    if stages.bans:
        column = xp.where(rows.banned_ids < 0, vocab_size, rows.banned_ids)
        banned = xp.zeros((num_rows, vocab_size + 1), dtype=xp.bool)
        allowed = allowed & ~at(banned, (xp.arange(num_rows)[:, None], column)).set(True)[:, :vocab_size]
    if stages.masks:
        words = rows.mask[xp.maximum(rows.mask_row, 0)]  # [R, W]
        # Ids beyond the mask are padding of the vocabulary, and not allowed in any case.
        word = words[:, xp.minimum(ids // 32, words.shape[1] - 1)]
        bit = (word >> xp.astype(ids % 32, xp.uint32)) & 1
        allowed = allowed & ((rows.mask_row < 0)[:, None] | (bit == 1))
    return allowed

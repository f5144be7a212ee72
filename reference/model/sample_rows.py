"""Sampling for the rows of a batch: the chain of `reference/serving/sample.py`, many rows at once.

One text for NumPy and under `jax.jit`. A stage that no row of a batch uses is left out, which changes no token: each
stage leaves the logits of rows that do not use it as they are. Where every row is greedy, so is the batch: temperature,
top-k, top-p and min-p all keep the largest logit.

Top-k and top-p both keep the first tokens of the falling order, however many. To find how many, a few of the largest
logits are enough, as a rule: XLA finds 64 of 151,936 in 0.6 ms a row on a CPU, and sorts them all in 55.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from array_api_extra import at

from reference.formats import Array
from reference.kernels.sampling import (
    add_logit_bias,
    apply_temperature,
    greedy,
    is_usable,
    keep_min_p,
    mask_tokens,
    penalize,
    perturb,
)
from reference.serving.runner import NOTHING_ALLOWED, UNUSABLE_LOGITS, Sampling

FEW, MANY = 64, 1024  # candidates: Qwen3's own top-k is 20; a nucleus of more than 1,024 tokens is rare


class Stages(NamedTuple):
    """Which stages a batch uses: what compiled functions are specialized on, and so few that few are compiled."""

    adjusts: bool  # any penalty, bias, ban or mask
    draws: bool  # any temperature above 0
    limits: bool  # top-k or top-p
    candidates: int  # largest logits among which top-k and top-p find their ends


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


def _directly(function: Callable[..., Any], *arrays: Any, **static: Any) -> Any:
    return function(*arrays, **static)


def rows_that_sample(sampling: Sampling, seq_lens: np.ndarray) -> tuple[SamplingRows, Stages]:
    """The rows of a batch that sample, in order, and what they use."""
    rows = np.flatnonzero(sampling.samples)
    lens = np.diff(sampling.history_start)
    # Of each row of the batch: its number among those that sample, or nobody's.
    owner = np.where(sampling.samples, np.cumsum(sampling.samples) - 1, len(rows))
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
    limits = draws & ((arrays.top_k > 0) | (arrays.top_p < 1))
    adjusts = len(arrays.history) > 0 or (arrays.bias_ids >= 0).any() or (arrays.banned_ids >= 0).any()
    stages = Stages(
        adjusts=bool(adjusts or (arrays.mask_row >= 0).any()),
        draws=bool(draws.any()),
        limits=bool(limits.any()),
        candidates=FEW if ((arrays.top_k > 0) & (arrays.top_k <= FEW))[limits].all() else MANY,
    )
    return arrays, stages


def sample_rows(
    logits: Array,  # f32 [R, V], as the model gave them
    rows: SamplingRows,
    stages: Stages,
    num_token_ids: int,  # ids from here on are padding of the vocabulary, and never sampled
    run: Callable[..., Any] = _directly,
) -> Array:  # i32 [R]; negative as in `StepOutput`
    """run(function, *arrays, **static): calls a part of the chain, or compiles it first (and the parts apart: what XLA
    would fuse across them runs ten times as long)."""
    if not stages.adjusts and not stages.draws:
        return run(_greedily, logits, num_token_ids=num_token_ids)
    adjusts = stages.adjusts or num_token_ids < logits.shape[1]
    usable, logits = run(_prepared, logits, rows, adjusts=adjusts, draws=stages.draws, num_token_ids=num_token_ids)
    if stages.limits:
        candidates = run(largest, logits, count=min(stages.candidates, logits.shape[1]))
        logits = run(_limited, logits, *candidates, rows.temperature, rows.top_k, rows.top_p)
    if stages.draws:
        logits = run(_perturbed, logits, rows.min_p, rows.temperature, rows.seed, rows.position, rows.sample_index)
    return run(_chosen, logits, usable)


def _greedily(logits: Array, *, num_token_ids: int) -> Array:
    return _chosen(logits[:, :num_token_ids], is_usable(logits))


def _prepared(
    logits: Array, rows: SamplingRows, *, adjusts: bool, draws: bool, num_token_ids: int
) -> tuple[Array, Array]:  # bool [R], f32 [R, V]
    """Whether the model's logits are usable; and the logits up to and with the temperature."""
    usable = is_usable(logits)
    if adjusts:
        logits = add_logit_bias(_penalized(logits, rows), rows.bias_ids, rows.bias)
        logits = mask_tokens(logits, _allowed(logits, rows, num_token_ids))
    return usable, apply_temperature(logits, rows.temperature) if draws else logits


def _perturbed(
    logits: Array, min_p: Array, temperature: Array, seed: Array, position: Array, sample_index: Array
) -> Array:
    return perturb(keep_min_p(logits, min_p), temperature, seed, position, sample_index)


def _chosen(logits: Array, usable: Array) -> Array:
    xp = logits.__array_namespace__()
    token_ids = greedy(logits)
    token_ids = xp.where(token_ids < 0, NOTHING_ALLOWED, token_ids)
    return xp.astype(xp.where(usable, token_ids, UNUSABLE_LOGITS), xp.int32)


def largest(logits: Array, *, count: int) -> tuple[Array, Array]:  # f32 [R, count], i32 [R, count]
    """The first of the falling order, and their ids."""
    xp = logits.__array_namespace__()
    if count < logits.shape[1]:
        # The lower id is first on a tie; but 0 is above -0 to XLA, so there is to be no -0.
        values, ids = jax.lax.top_k(xp.where(logits == 0, 0.0, logits), count)
        return values, ids
    ids = xp.argsort(-logits, axis=-1, stable=True)
    return xp.take_along_axis(logits, ids, axis=-1), xp.astype(ids, xp.int32)


def _limited(logits: Array, values: Array, ids: Array, temperature: Array, top_k: Array, top_p: Array) -> Array:
    """`keep_top_k`, then `keep_top_p`; values, ids: the first of the falling order."""
    xp = logits.__array_namespace__()
    vocab_size = logits.shape[1]
    top_k = xp.where(top_k < vocab_size, top_k, 0)
    is_limited = (temperature > 0) & ((top_k > 0) | (top_p < 1))
    last, last_id, found = _last_kept(logits, values, ids, top_k, top_p)
    if values.shape[1] < vocab_size:
        last, last_id = jax.lax.cond(
            xp.all(found | ~is_limited),
            lambda: (last, last_id),
            lambda: _last_kept(logits, *largest(logits, count=vocab_size), top_k, top_p)[:2],
        )
    column = xp.arange(vocab_size, dtype=xp.int32)
    is_kept = (logits > last[:, None]) | ((logits == last[:, None]) & (column <= last_id[:, None]))
    return mask_tokens(logits, is_kept | ~is_limited[:, None])


def _last_kept(
    logits: Array, values: Array, ids: Array, top_k: Array, top_p: Array
) -> tuple[Array, Array, Array]:  # f32 [R], i32 [R], bool [R]
    """The last logit that top-k and top-p keep, its id, and whether the candidates were enough to know."""
    xp = logits.__array_namespace__()
    count, vocab_size = values.shape[1], logits.shape[1]
    place = xp.arange(count, dtype=xp.int32)[None]
    k, p = top_k[:, None], top_p[:, None]
    base = xp.where(xp.isfinite(values[:, :1]), values[:, :1], 0.0)
    in_top_k = (place < k) | (k == 0)
    shares = xp.where(in_top_k, xp.exp(values - base), 0.0)
    # Without top-k the distribution is over all logits, those that are not among the candidates included.
    total = xp.where(
        k > 0,
        xp.sum(shares, axis=-1, keepdims=True),
        xp.sum(xp.exp(logits - base), axis=-1, keepdims=True),
    )
    preceding = xp.cumulative_sum(shares, axis=-1, include_initial=True)[:, :-1]
    kept = in_top_k & ((preceding < p * total) | (place == 0) | (p >= 1))
    num_kept = xp.sum(kept, axis=-1, dtype=xp.int32)
    # A nucleus is of all that top-k keeps: among fewer candidates its total is not known.
    enough = (count == vocab_size) | ((top_k <= count) & ((top_k > 0) | (num_kept < count)))
    at_last = xp.maximum(num_kept - 1, 0)[:, None]
    last = xp.take_along_axis(values, at_last, axis=-1)[:, 0]
    last_id = xp.take_along_axis(ids, at_last, axis=-1)[:, 0]
    return last, last_id, enough


def _penalized(logits: Array, rows: SamplingRows) -> Array:
    xp = logits.__array_namespace__()
    num_rows, vocab_size = logits.shape
    # Padding of the history, and a sampled token that was an error, land in a row of their own.
    row = xp.where((rows.history_row < num_rows) & (rows.history >= 0), rows.history_row, num_rows)
    index = (row, xp.clip(rows.history, 0, vocab_size - 1))

    def counts(occurs: Array) -> Array:  # i32 [R, V]
        number = xp.zeros((num_rows + 1, vocab_size), dtype=xp.int32)
        if isinstance(number, np.ndarray):  # whose `+=` counts a place once, however often it is named
            np.add.at(number, index, occurs)
            return number[:num_rows]
        return at(number, index).add(xp.astype(occurs, xp.int32))[:num_rows]

    return penalize(
        logits,
        counts(rows.history_is_prompt) > 0,
        counts(~rows.history_is_prompt),
        repetition=rows.repetition,
        presence=rows.presence,
        frequency=rows.frequency,
    )


def _allowed(logits: Array, rows: SamplingRows, num_token_ids: int) -> Array:  # bool [R, V]
    xp = logits.__array_namespace__()
    num_rows, vocab_size = logits.shape
    ids = xp.arange(vocab_size, dtype=xp.int32)
    column = xp.where(rows.banned_ids < 0, vocab_size, rows.banned_ids)
    banned = xp.zeros((num_rows, vocab_size + 1), dtype=xp.bool)
    banned = at(banned, (xp.arange(num_rows)[:, None], column)).set(True)[:, :vocab_size]
    allowed = (ids < num_token_ids) & ~banned
    if not rows.mask.shape[0]:
        return allowed
    words = rows.mask[xp.maximum(rows.mask_row, 0)]  # [R, W]
    # Ids beyond the mask are padding of the vocabulary, and not allowed in any case.
    word = words[:, xp.minimum(ids // 32, words.shape[1] - 1)]
    bit = (word >> xp.astype(ids % 32, xp.uint32)) & 1
    return allowed & ((rows.mask_row < 0)[:, None] | (bit == 1))

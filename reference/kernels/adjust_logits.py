"""Penalties and biases of requests, on the logits of the tokens that they name: two stages of `sampling`, as one
operation over what requests bring."""

from __future__ import annotations

import numpy as np
from array_api_extra import at

from reference.formats import Array
from reference.kernels.sampling import add_logit_bias, penalize


def adjust_logits(
    logits: Array,  # f32 [R, V]
    history: Array,  # i32 [H]: the tokens that rows have, one row after another; negative ones do not count
    history_start: Array,  # i32 [R + 1]: row r has history[history_start[r] : history_start[r + 1]]
    prompt_lens: Array,  # i32 [R]: how many of a row's history, from its first, are its prompt; the rest is its output
    repetition: Array,  # f32 [R], > 0; 1 does nothing
    presence: Array,  # f32 [R]; 0 does nothing
    frequency: Array,  # f32 [R]; 0 does nothing
    bias_ids: Array,  # i32 [R, B], -1 pads; the others of a row are distinct
    bias: Array,  # f32 [R, B]
) -> tuple[Array, Array]:  # f32 [R, V], i32 [R, 2]
    """`penalize` by what a row's history holds, then `add_logit_bias`. A token that neither concerns keeps its bits.

    The second result says how many finite logits of a row became NaN or +inf, and how many -inf, so that
    `sample_tokens` can tell a model's infinities, which make a row unusable, from those.
    """
    xp = logits.__array_namespace__()
    num_rows, vocab_size = logits.shape
    number = xp.arange(history.shape[0], dtype=xp.int32)
    # How many rows end at or before a token is the row that it is of.
    row = xp.sum(number[:, None] >= history_start[None, 1:], axis=1, dtype=xp.int32)
    row = xp.minimum(row, num_rows - 1)
    is_prompt = number - history_start[row] < prompt_lens[row]
    in_prompt = _counts(logits, history, row, is_prompt) > 0
    of_output = _counts(logits, history, row, ~is_prompt)
    penalties = {"repetition": repetition, "presence": presence, "frequency": frequency}
    penalized = penalize(logits, in_prompt, of_output, **penalties)
    penalized = xp.where(in_prompt | (of_output > 0), penalized, logits)
    ids = xp.arange(vocab_size, dtype=xp.int32)
    has_bias = xp.any(bias_ids[:, :, None] == ids, axis=1)
    adjusted = xp.where(has_bias, add_logit_bias(penalized, bias_ids, bias), penalized)
    was_finite = xp.isfinite(logits)
    above = xp.sum(was_finite & (xp.isnan(adjusted) | (adjusted == xp.inf)), axis=1, dtype=xp.int32)
    below = xp.sum(was_finite & (adjusted == -xp.inf), axis=1, dtype=xp.int32)
    return adjusted, xp.stack((above, below), axis=1)


def _counts(logits: Array, history: Array, row: Array, counts: Array) -> Array:  # i32 [R, V]
    """How often each id stands in each row's history, where it counts (bool [H])."""
    xp = logits.__array_namespace__()
    num_rows, vocab_size = logits.shape
    # What does not count lands in a row of its own, which is then cut off.
    index = (xp.where(counts & (history >= 0), row, num_rows), xp.clip(history, 0, vocab_size - 1))
    number = xp.zeros((num_rows + 1, vocab_size), dtype=xp.int32)
    if isinstance(number, np.ndarray):  # whose `+=` counts a place once, however often it is named
        np.add.at(number, index, 1)
        return number[:num_rows]
    return at(number, index).add(1)[:num_rows]

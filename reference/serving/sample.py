"""One token from one row of logits: the chain of `reference/kernels/sampling.py` in the order that requests state.

    logits -> repetition, frequency and presence penalties -> logit bias -> allowed tokens, constraint -> temperature
           -> top-k -> top-p -> min-p -> the draw

Every stage runs for every request; one that a request does not use leaves the logits as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from reference.formats import FLOAT32, Array
from reference.kernels.sampling import (
    add_logit_bias,
    apply_temperature,
    greedy,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    mask_tokens,
    penalize,
    perturb,
)
from reference.serving.request import NOTHING_ALLOWED_ERROR, Constraint, SamplingParams
from reference.serving.usable import UnusableLogits, require_usable


def sample_token(
    logits: Array,  # f32 [V], as the model gave them
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],  # what this sample has so far
    params: SamplingParams,
    *,
    sample_index: int,
    banned_token_ids: Iterable[int],
) -> int:
    """The next token of a sample, which will stand after the prompt and the output so far.

    Errors: UnusableLogits, also if every token that may be sampled has probability 0.
    """
    position = len(prompt_token_ids) + len(output_token_ids)
    require_usable(logits, position)
    [token_id] = greedy(
        perturbed_logits(
            logits,
            prompt_token_ids,
            output_token_ids,
            params,
            sample_index=sample_index,
            banned_token_ids=banned_token_ids,
        )
    )
    if token_id < 0:
        raise UnusableLogits(NOTHING_ALLOWED_ERROR.format(position=position))
    return int(token_id)


def perturbed_logits(
    logits: Array,  # f32 [V], usable
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    sample_index: int,
    banned_token_ids: Iterable[int],
) -> Array:  # f32 [1, V]
    """The logits after the whole chain and with the draw's noise: their largest is the token that is sampled, and its
    lead over the second is how far from a tie that was."""
    position = len(prompt_token_ids) + len(output_token_ids)
    vocab_size = logits.shape[0]
    row = penalize(
        logits[None, :],
        _mask(prompt_token_ids, vocab_size),
        np.bincount(np.asarray(output_token_ids, np.int64), minlength=vocab_size)[None, :].astype(np.int32),
        repetition=_one(params.repetition_penalty),
        presence=_one(params.presence_penalty),
        frequency=_one(params.frequency_penalty),
    )
    biased_ids = np.array([list(params.logit_bias.keys())], np.int32)
    row = add_logit_bias(row, biased_ids, np.array([list(params.logit_bias.values())], np.float32))
    allowed = ~_mask(list(banned_token_ids), vocab_size)
    if params.allowed_token_ids is not None:
        allowed &= _mask(params.allowed_token_ids, vocab_size)
    if params.constraint is not None:
        allowed &= allowed_by(params.constraint, output_token_ids, vocab_size)
    row = mask_tokens(row, allowed)
    row = apply_temperature(row, _one(params.temperature))
    row = keep_top_k(row, np.array([min(params.top_k, vocab_size)], np.int32))
    row = keep_top_p(row, _one(params.top_p))
    row = keep_min_p(row, _one(params.min_p))
    return perturb(
        row,
        _one(params.temperature),
        np.array([[params.seed & 0xFFFFFFFF, params.seed >> 32]], np.uint32),
        np.array([position], np.int32),
        np.array([sample_index], np.int32),
    )


def allowed_by(
    constraint: Constraint,
    output_token_ids: Sequence[int],  # what this sample has so far
    vocab_size: int,
) -> Array:  # bool [1, V]
    """Which tokens a constraint allows after an output: asked anew, from the first token on.

    Errors: ValueError for an output that it does not allow.
    """
    state = constraint.begin()
    for token_id in output_token_ids:
        state.accept(token_id)
    words = state.allowed()
    if words is None:
        return np.ones((1, vocab_size), np.bool_)
    token_ids = np.arange(min(vocab_size, 32 * len(words)))
    mask = np.zeros((1, vocab_size), np.bool_)
    mask[0, token_ids] = words[token_ids // 32] >> (token_ids % 32) & 1
    return mask


def _one(value: float) -> Array:  # f32 [1]
    return np.array([min(value, FLOAT32.max)], np.float32)


def _mask(token_ids: Sequence[int], vocab_size: int) -> Array:  # bool [1, V]
    mask = np.zeros((1, vocab_size), np.bool_)
    mask[0, list(token_ids)] = True
    return mask

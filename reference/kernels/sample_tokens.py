"""One token for each row of logits: the chain of `sampling`, as one operation.

    logits (penalised and biased, where a request asks for it) -> allowed tokens -> temperature -> top-k -> top-p
           -> min-p -> the draw

A row in which the model's own logits hold NaN or +inf, or nothing but -inf, is reported, not sampled. So is one that
penalties have made such, but as what it is: a row of which nothing may be sampled.
"""

from __future__ import annotations

from array_api_extra import at

from reference.formats import Array
from reference.kernels.sampling import (
    apply_temperature,
    greedy,
    is_usable,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    mask_tokens,
    perturb,
)
from reference.serving.runner import NOT_SAMPLED, NOTHING_ALLOWED, UNUSABLE_LOGITS

LIMITS = ("none", "few", "any")
FEW = 64


def sample_tokens(
    logits: Array,  # f32 [R, V]
    temperature: Array,  # f32 [R]: 0 is greedy; below 0, the row does not sample
    top_k: Array,  # i32 [R]; 0 keeps all
    top_p: Array,  # f32 [R], (0, 1]; 1 keeps all
    min_p: Array,  # f32 [R], [0, 1]; 0 keeps all
    seed: Array,  # u32 [R, 2], low word and high word of the 64-bit seed
    position: Array,  # i32 [R], where the drawn token will stand
    sample_index: Array,  # i32 [R]
    banned_ids: Array,  # i32 [R, N], -1 pads: never sampled
    mask: Array,  # u32 [M, W]: allowed ids, 32 a word, the lowest in the lowest bit; those beyond it are not
    mask_row: Array,  # i32 [R]: which row of `mask`; -1 allows all
    turned: Array,  # i32 [R, 2] of `adjust_logits`; [R, 0]: nothing was adjusted
    *,
    num_token_ids: int,  # ids from here on are padding of the vocabulary, and never sampled
    draws: bool = True,
    limits: str = "any",
) -> Array:  # i32 [R]
    """A token id, or UNUSABLE_LOGITS, NOTHING_ALLOWED (all that may be sampled have probability 0, or a quotient by the
    temperature overflows) or NOT_SAMPLED of `serving.runner`.

    draws, limits: what the caller knows of all rows, which changes no token. draws: is any temperature above 0? limits,
    of the rows that draw: "none" has top-k or top-p; those that do have a top-k of at most FEW; or "any".
    """
    xp = logits.__array_namespace__()
    allowed = allowed_tokens(logits.shape[1], banned_ids, mask, mask_row, num_token_ids)
    usable = was_usable(logits, turned)
    samples = temperature >= 0
    temperature = xp.where(samples, temperature, 0.0)
    chain = apply_temperature(mask_tokens(logits, allowed), temperature)
    chain = keep_top_k(chain, xp.minimum(top_k, logits.shape[1]))
    chain = keep_min_p(keep_top_p(chain, top_p), min_p)
    token_ids = greedy(perturb(chain, temperature, seed, position, sample_index))
    token_ids = xp.where(token_ids < 0, NOTHING_ALLOWED, token_ids)
    token_ids = xp.where(usable, token_ids, UNUSABLE_LOGITS)
    return xp.astype(xp.where(samples, token_ids, NOT_SAMPLED), xp.int32)


def allowed_tokens(
    vocab_size: int,
    banned_ids: Array,  # i32 [R, N]
    mask: Array,  # u32 [M, W]
    mask_row: Array,  # i32 [R]
    num_token_ids: int,
) -> Array:  # bool [R, V]
    """Which tokens may be sampled."""
    xp = mask_row.__array_namespace__()
    num_rows = mask_row.shape[0]
    ids = xp.arange(vocab_size, dtype=xp.int32)
    # Padding writes to a column of its own, which is then cut off.
    column = xp.where(banned_ids < 0, vocab_size, banned_ids)
    banned = xp.zeros((num_rows, vocab_size + 1), dtype=xp.bool)
    banned = at(banned, (xp.arange(num_rows)[:, None], column)).set(True)[:, :vocab_size]
    allowed = (ids < num_token_ids) & ~banned
    if not mask.shape[0]:
        return allowed
    num_words = mask.shape[1]
    words = xp.concat((mask, xp.zeros((mask.shape[0], 1), dtype=xp.uint32)), axis=1)[xp.maximum(mask_row, 0)]
    word = words[:, xp.minimum(ids // 32, num_words)]
    in_mask = ((word >> xp.astype(ids % 32, xp.uint32)) & 1) == 1
    return allowed & ((mask_row < 0)[:, None] | in_mask)


def was_usable(
    logits: Array,  # f32 [R, V], adjusted
    turned: Array,  # i32 [R, 2], or [R, 0]
) -> Array:  # bool [R]
    """Was a row usable before it was adjusted? It held no NaN and no +inf if all that it holds now were made by that,
    and a finite number if one is left, or was made any of these, or -inf."""
    xp = logits.__array_namespace__()
    if not turned.shape[1]:
        return is_usable(logits)
    above = xp.sum(xp.isnan(logits) | (logits == xp.inf), axis=1, dtype=xp.int32)
    had_finite = xp.any(xp.isfinite(logits), axis=1) | (xp.sum(turned, axis=1) > 0)
    return (above == turned[:, 0]) & had_finite

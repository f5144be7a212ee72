"""Tokens that were sampled on the device and that nobody has seen: named by the row of the batch that drew them."""

from __future__ import annotations

from reference.formats import Array


def known_tokens(
    token_ids: Array,  # i32 [T]; -1 - r means: what row r of the previous batch sampled
    previous: Array,  # i32 [R]; negative where that row drew no token
    *,
    missing: int,
) -> Array:  # i32 [T]
    """Every token by its id; `missing` for one that row r did not draw."""
    xp = token_ids.__array_namespace__()
    if previous.shape[0] == 0:
        return xp.where(token_ids < 0, missing, token_ids)
    drawn = previous[xp.clip(-1 - token_ids, 0, previous.shape[0] - 1)]
    return xp.where(token_ids < 0, xp.where(drawn < 0, missing, drawn), token_ids)

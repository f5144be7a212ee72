"""Which token ids a request allows, as bits: 32 to a word, the lowest id in the lowest bit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from reference.serving.request import ConstraintState


def bits_of(token_ids: Iterable[int], num_token_ids: int) -> np.ndarray:  # u32 [ceil(num_token_ids / 32)]
    """The mask that allows these ids."""
    allowed = np.zeros(-(-num_token_ids // 32) * 32, np.uint8)
    allowed[list(token_ids)] = 1
    return np.packbits(allowed, bitorder="little").view("<u4")


def combined_mask(
    allowed_token_ids: tuple[int, ...] | None, constraint: ConstraintState | None, num_token_ids: int
) -> np.ndarray | None:
    """What both allow, for the next token; None for all."""
    of_ids = None if allowed_token_ids is None else bits_of(allowed_token_ids, num_token_ids)
    of_constraint = None if constraint is None else constraint.allowed()
    if of_ids is None or of_constraint is None:
        return of_constraint if of_ids is None else of_ids
    return of_ids & of_constraint

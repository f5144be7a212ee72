"""Log-probabilities that a client asked for: of the raw logits, before any stage of sampling.

They are over every logit of the model, the vocabulary's padding included: no stage has touched them yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from reference.formats import Array
from reference.kernels.log_probs import token_log_probs
from reference.serving.request import TokenLogprobs
from reference.serving.usable import require_usable


def log_probs_at(
    logits: Array,  # f32 [V], what the model says of one position
    token_id: int,  # the token that stands there
    num_top: int,
) -> TokenLogprobs:
    log_prob, rank, top_ids, top_log_probs = token_log_probs(logits[None, :], np.array([token_id], np.int32), num_top)
    top = tuple(zip(top_ids[0].tolist(), top_log_probs[0].tolist(), strict=True))
    return TokenLogprobs(token_id, float(log_prob[0]), int(rank[0]), top)


def prompt_log_probs(
    all_logits: Iterable[Array],  # f32 [V] for each token of the prompt
    prompt_token_ids: Sequence[int],
    num_top: int,
) -> tuple[TokenLogprobs | None, ...]:
    """One for each token of the prompt: None for the first, of which nothing is said. The last row is about the
    first token of the output, and is left out. Errors: UnusableLogits."""
    log_probs: list[TokenLogprobs | None] = [None]
    for position, (token_id, logits) in enumerate(zip(prompt_token_ids[1:], all_logits, strict=False), start=1):
        require_usable(logits, position)
        log_probs.append(log_probs_at(logits, token_id, num_top))
    return tuple(log_probs)

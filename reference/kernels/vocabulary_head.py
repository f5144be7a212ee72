"""The last projection of a model: a logit for every id of the vocabulary, and what greedy decoding wants to know of
them.

    logits = x W^T,   token = argmax(logits),   log_sum_exp = log(sum over v of exp(logits[v]))

Rounding: none: logits are the float32 sums. With a norm weight x is normalised first, and rounded where `linear` says.
"""

from __future__ import annotations

from typing import NamedTuple

from reference.formats import Array, DType
from reference.kernels.linear import product
from reference.kernels.sampling import greedy


class VocabularyHead(NamedTuple):
    logits: Array  # f32 [T, V]
    token_ids: Array  # i32 [T]: the largest logit's, the lower id on a tie; -1 where that is not finite
    log_sum_exp: Array  # f32 [T]: what a logit less this is its log-probability; NaN with a NaN or +inf among them


def vocabulary_head(
    x: Array,  # [T, K]
    weight: Array,  # [V, K]
    *,
    norm_weight: Array | None = None,  # [K]
    eps: float = 0.0,
    weight_bias: float = 0.0,
    rounded_to: DType | None = None,
) -> VocabularyHead:
    """eps, weight_bias, rounded_to: of the norm, see `product`."""
    logits = product(x, weight, norm_weight, eps=eps, weight_bias=weight_bias, rounded_to=rounded_to)
    return VocabularyHead(logits, greedy(logits), log_sum_exp(logits))


def log_sum_exp(
    logits: Array,  # f32 [T, V]
) -> Array:  # f32 [T]
    """-inf where all logits are."""
    xp = logits.__array_namespace__()
    largest = xp.max(logits, axis=-1)
    base = xp.where(largest == -xp.inf, 0.0, largest)
    return base + xp.log(xp.sum(xp.exp(logits - base[:, None]), axis=-1))

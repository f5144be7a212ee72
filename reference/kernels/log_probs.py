"""Log-probabilities of tokens, their ranks, and the likeliest tokens.

    log_softmax(l)[v] = l[v] - m - log(sum over u of exp(l[u] - m)),   m = max(l)

Log-probabilities are natural and those of the raw logits, before any stage of sampling.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.precision import wide


def log_softmax(
    logits: Array,  # [R, V]
) -> Array:  # f32 [R, V]
    """Log-probabilities. -inf gives -inf, also in a row that has nothing else; a row with a NaN is NaN."""
    xp = logits.__array_namespace__()
    logits = wide(logits)
    largest = xp.max(logits, axis=-1, keepdims=True)
    shifted = logits - xp.where(largest == -xp.inf, 0.0, largest)
    total = xp.sum(xp.exp(shifted), axis=-1, keepdims=True)
    return shifted - xp.log(xp.where(total == 0, 1.0, total))


def token_log_probs(
    logits: Array,  # [R, V]
    token_ids: Array,  # i32 [R]
    num_top: int,
) -> tuple[Array, Array, Array, Array]:  # f32 [R], i32 [R], i32 [R, n], f32 [R, n]; n = min(num_top, V)
    """Each row's token: its log-probability and rank; and the n likeliest tokens with theirs.

    The rank is 1 + the number of strictly larger logits, so tied tokens share one. The likeliest tokens are in falling
    order of their logits, the lower id first on a tie. A row without a token (id -1: none could be drawn) gives NaN
    and rank 0.
    """
    xp = logits.__array_namespace__()
    logits = wide(logits)
    log_probs = log_softmax(logits)
    missing = token_ids < 0
    column = xp.where(missing, 0, token_ids)[:, None]
    chosen = xp.take_along_axis(log_probs, column, axis=-1)[:, 0]
    larger = xp.sum(logits > xp.take_along_axis(logits, column, axis=-1), axis=-1, dtype=xp.int32)
    top_ids = xp.argsort(-logits, axis=-1, stable=True)[:, :num_top]
    top_log_probs = xp.take_along_axis(log_probs, top_ids, axis=-1)
    rank = xp.astype(xp.where(missing, 0, 1 + larger), xp.int32)
    return xp.where(missing, xp.nan, chosen), rank, xp.astype(top_ids, xp.int32), top_log_probs

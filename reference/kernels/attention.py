"""Causal attention with grouped query heads.

    out[t, n] = sum_s p[s] v[s, n // group]      p = softmax over visible s of (q[t, n] . k[s, n // group] * scale)

group = Nq / Nkv query heads share a KV head: heads n of one KV head are adjacent. A query at position p sees keys
0 .. p. A query that sees no key gives 0.

Rounding: scores, softmax and the weighted sum are float32; probabilities are NOT rounded before they multiply v; ONE
rounding at the end. transformers' eager attention rounds the scores and the probabilities to the model's dtype.

NaN: what lies beyond a sequence's last position may be NaN. A key there cannot do harm, because its score is replaced
by -inf whatever it is. A value can, because its probability is 0 and 0 x NaN = NaN: values there are replaced by 0.
A NaN or infinity among a sequence's own values reaches earlier queries of the same call too, for the same reason;
other sequences are unharmed.

Source: arXiv:1706.03762; grouped queries: arXiv:2305.13245.
"""

from __future__ import annotations

import numpy as np

from reference.formats import Array
from reference.kernels.precision import wide


def attention(
    q: Array,  # [T, Nq, D]
    k: Array,  # [S, Nkv, D], S >= 1
    v: Array,  # [S, Nkv, D]
    *,
    start: Array | int,  # i32 scalar: the position of the first query; may be traced
    scale: float | None = None,
) -> Array:  # [T, Nq, D], q's dtype
    """Query i stands at position start + i and sees keys 0 .. start + i; keys from start + T on may be NaN."""
    xp = q.__array_namespace__()
    num_tokens = q.shape[0]
    positions = start + xp.arange(num_tokens, dtype=xp.int32)
    lengths = xp.reshape(xp.asarray(start + num_tokens, dtype=xp.int32), (1,))
    return attend(q[None], k[None], v[None], positions[None], lengths, scale)[0]


def attend(
    q: Array,  # [R, Q, Nq, D]
    k: Array,  # [R, S, Nkv, D]
    v: Array,  # [R, S, Nkv, D]
    positions: Array,  # i32 [R, Q]: where each query stands
    lengths: Array,  # i32 [R]: what is from here on has no part in the result
    scale: float | None,
) -> Array:  # [R, Q, Nq, D], q's dtype
    """The formula above for R sequences at once."""
    xp = q.__array_namespace__()
    num_requests, num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads = k.shape[1:3]
    group = num_heads // num_kv_heads
    scale = head_dim**-0.5 if scale is None else scale

    key = xp.arange(num_keys, dtype=xp.int32)
    visible = key <= positions[:, :, None]  # [R, Q, S]
    v = xp.where((key < lengths[:, None])[:, :, None, None], wide(v), 0.0)

    grouped = xp.reshape(wide(q), (num_requests, num_queries, num_kv_heads, group, head_dim))
    grouped = xp.permute_dims(grouped, (0, 2, 3, 1, 4))  # [R, Nkv, group, Q, D]
    scores = xp.matmul(grouped, xp.permute_dims(wide(k), (0, 2, 3, 1))[:, :, None]) * scale  # [R, Nkv, group, Q, S]
    probabilities = _softmax(xp.where(visible[:, None, None], scores, -xp.inf))
    out = xp.matmul(probabilities, xp.permute_dims(v, (0, 2, 1, 3))[:, :, None])  # [R, Nkv, group, Q, D]
    out = xp.permute_dims(out, (0, 3, 1, 2, 4))
    return xp.astype(xp.reshape(out, q.shape), q.dtype)


def _softmax(scores: Array) -> Array:
    """exp(s - max) / sum over the last axis; a row that is -inf throughout gives 0 throughout."""
    xp = scores.__array_namespace__()
    largest = xp.max(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores - xp.where(largest == -np.inf, 0.0, largest))
    # With any visible key the sum is at least 1, because the largest score contributes exp(0).
    return weights / xp.maximum(xp.sum(weights, axis=-1, keepdims=True), 1.0)

"""Causal attention with grouped query heads, over whole keys and over a paged KV cache.

    out[t, n] = sum_s p[s] v[s, n // group]      p = softmax over visible s of (q[t, n] . k[s, n // group] * scale)

group = Nq / Nkv query heads share a KV head: heads n of one KV head are adjacent. A query at position p sees keys
0 .. p. A query that sees no key gives 0.

Rounding: scores, softmax and the weighted sum are float32; probabilities are NOT rounded before they multiply v; ONE
rounding at the end. transformers' eager attention rounds the scores and the probabilities to the model's dtype.

NaN: what lies beyond a sequence's last position may be NaN. A key there cannot do harm, because its score is replaced
by -inf whatever it is. A value can, because its probability is 0 and 0 x NaN = NaN: values there are replaced by 0.
A NaN or infinity among a sequence's own values reaches earlier queries of the same call too, for the same reason;
other sequences are unharmed.

Source: arXiv:1706.03762; grouped queries: arXiv:2305.13245; paging: arXiv:2309.06180.
"""

from __future__ import annotations

import array_api_extra as xpx
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
    return _attend(q[None], k[None], v[None], positions[None], lengths, scale)[0]


def paged_attention(
    q: Array,  # [T, Nq, D], the queries of R requests, one after another
    k_cache: Array,  # [B, Nkv, bs, D]
    v_cache: Array,  # [B, Nkv, bs, D]
    block_table: Array,  # i32 [R, M], M >= 1: the blocks that hold a request's keys, in order; -1 pads
    query_start: Array,  # i32 [R + 1]: request r has the queries query_start[r] .. query_start[r + 1] - 1
    seq_lens: Array,  # i32 [R]: keys of each request, those of its queries included
    *,
    max_query_len: int,  # no request has more queries; static, because it is a shape
    scale: float | None = None,
) -> Array:  # [T, Nq, D], q's dtype
    """A request's queries are its last tokens: query j of n stands at position seq_lens[r] - n + j.

    Key s of request r is in block block_table[r, s // bs] at offset s % bs. Blocks that are not a request's, and slots
    beyond its length, may hold NaN. Rows of q beyond query_start[R] give 0.
    """
    xp = q.__array_namespace__()
    num_tokens, num_requests = q.shape[0], block_table.shape[0]

    # Queries as a rectangle [R, Q]: row r holds request r's queries, then padding. Padding reads and writes a row T
    # that is zero to begin with and is cut off in the end.
    query_lens = query_start[1:] - query_start[:-1]  # [R]
    column = xp.arange(max_query_len, dtype=xp.int32)[None]  # [1, Q]
    token = xp.where(column < query_lens[:, None], query_start[:-1, None] + column, num_tokens)  # [R, Q]
    padded_q = xp.concat([q, xp.zeros((1, *q.shape[1:]), dtype=q.dtype)], axis=0)
    positions = (seq_lens - query_lens)[:, None] + column  # [R, Q]

    def gather_keys(cache: Array) -> Array:  # [B, Nkv, bs, D] -> [R, M * bs, Nkv, D]
        blocks = cache[block_table]  # [R, M, Nkv, bs, D]; -1 fetches the last block, beyond the length like any padding
        _, num_blocks, num_heads, block_size, head_dim = blocks.shape
        by_token = xp.permute_dims(blocks, (0, 1, 3, 2, 4))
        return xp.reshape(by_token, (num_requests, num_blocks * block_size, num_heads, head_dim))

    attended = _attend(padded_q[token], gather_keys(k_cache), gather_keys(v_cache), positions, seq_lens, scale)
    return xpx.at(xp.zeros_like(padded_q), token).set(attended)[:num_tokens]


def _attend(
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

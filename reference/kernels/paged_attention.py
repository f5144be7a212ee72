"""Causal attention over a paged KV cache: the formula, the rounding and the NaN of `reference.kernels.attention`.

Source of paging: arXiv:2309.06180.
"""

from __future__ import annotations

import array_api_extra as xpx

from reference.formats import Array
from reference.kernels.attention import attend


def paged_attention(
    q: Array,  # [T, Nq, D], the queries of R requests, one after another
    k_cache: Array,  # [B, Nkv, bs, D]
    v_cache: Array,  # [B, Nkv, bs, D]
    block_table: Array,  # i32 [R, M], M >= 1: the blocks that hold a request's keys, in order; -1 pads
    query_start: Array,  # i32 [R + 1], from 0: request r has the queries query_start[r] .. query_start[r + 1] - 1
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

    attended = attend(padded_q[token], gather_keys(k_cache), gather_keys(v_cache), positions, seq_lens, scale)
    return xpx.at(xp.zeros_like(padded_q), token).set(attended)[:num_tokens]

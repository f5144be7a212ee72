"""The dispatch of a mixture of experts: rows brought together by expert, so that each expert's weight meets all of its
tokens in one product.

    token          0    1    2                     tile = 4
    expert_ids    1,0  1,2  1,0
    expert              0        |      1        |      2
    row            0  1  2  3    |  4  5  6  7   |  8  9 10 11
    src_token      0  2 -1 -1    |  0  1  2 -1   |  1 -1 -1 -1
    row_of        [4,0] [5,8] [6,1]
    expert_offsets = [0, 4, 8, 12]

Each expert's rows start at a multiple of `tile` and stand in ascending (token, k) order: no atomic decides an order
that shows. The number of rows does not depend on the routing (`dispatch_rows`), so that shapes are static.

Rounding: none, rows are copied bit for bit.
Source: Shazeer et al., arXiv:1701.06538.
"""

from __future__ import annotations

from typing import NamedTuple

from array_api_extra import at

from reference.formats import Array


class Dispatch(NamedTuple):
    """Where each (token, k) stands among the rows, and whose token each row is."""

    expert_offsets: Array  # i32 [E + 1]: expert e holds the rows from offsets[e] up to offsets[e + 1], padding included
    src_token: Array  # i32 [rows]: -1 on padding
    row_of: Array  # i32 [T, K]: -1 where the (token, k) goes to no expert


def dispatch_rows(num_tokens: int, experts_per_token: int, num_experts: int, *, tile: int) -> int:
    """Rows that hold any routing of T tokens to K of E experts, each expert padded to a multiple of `tile`.

    At most min(E, T K) experts have rows, and each is padded by at most tile - 1; the total is a multiple of `tile`.
    """
    routed = num_tokens * experts_per_token
    return (routed + min(num_experts, routed) * (tile - 1)) // tile * tile


def moe_dispatch(
    expert_ids: Array,  # i32 [T, K]
    num_experts: int,
    *,
    tile: int,
) -> Dispatch:
    """Give each (token, k) a row among those of its expert.

    An id that is negative, or not below `num_experts`, goes to no expert. One expert may occur more than once in a
    token: each occurrence is a row of its own.
    """
    xp = expert_ids.__array_namespace__()
    num_tokens, experts_per_token = expert_ids.shape
    rows = dispatch_rows(num_tokens, experts_per_token, num_experts, tile=tile)
    expert = xp.reshape(expert_ids, (-1,))  # [T K], ascending (token, k)
    token = xp.arange(num_tokens * experts_per_token, dtype=xp.int32) // max(experts_per_token, 1)

    chosen = xp.astype(expert[:, None] == xp.arange(num_experts), xp.int32)  # [T K, E], one-hot; all 0 if unrouted
    earlier = xp.cumulative_sum(chosen, axis=0, dtype=xp.int32) - chosen  # (token, k) before this one, by expert
    counts = xp.sum(chosen, axis=0, dtype=xp.int32)
    padded = (counts + tile - 1) // tile * tile
    expert_offsets = xp.cumulative_sum(padded, dtype=xp.int32, include_initial=True)

    row = xp.sum(chosen * (expert_offsets[:-1] + earlier), axis=1, dtype=xp.int32)
    routed = (expert >= 0) & (expert < num_experts)
    # Unrouted entries are written to one row too many, which is then cut off.
    src_token = xp.full((rows + 1,), -1, dtype=xp.int32)
    src_token = at(src_token, xp.where(routed, row, rows)).set(token)[:rows]
    row_of = xp.reshape(xp.where(routed, row, -1), (num_tokens, experts_per_token))
    return Dispatch(expert_offsets, src_token, xp.astype(row_of, xp.int32))


def gather_rows(
    x: Array,  # [T, H]
    src_token: Array,  # i32 [rows]
) -> Array:  # [rows, H]
    """The token of each row; 0 on padding. Nothing is rounded."""
    xp = x.__array_namespace__()
    is_padding = src_token < 0
    return xp.where(is_padding[:, None], xp.zeros((), dtype=x.dtype), x[xp.where(is_padding, 0, src_token)])

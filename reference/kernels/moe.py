"""Mixture of experts: the router, the dispatch of rows to experts, the product for each expert, the combination.

    y[t] = sum over k of weights[t, k] * expert[expert_ids[t, k]](x[t])

Rows are brought together by expert, so that each expert's weight meets all of its tokens in one product:

    token          0    1    2                     tile = 4
    expert_ids    1,0  1,2  1,0
    expert              0        |      1        |      2
    row            0  1  2  3    |  4  5  6  7   |  8  9 10 11
    src_token      0  2 -1 -1    |  0  1  2 -1   |  1 -1 -1 -1
    row_of        [4,0] [5,8] [6,1]
    expert_offsets = [0, 4, 8, 12]

Each expert's rows start at a multiple of `tile` and stand in ascending (token, k) order: no atomic decides an order
that shows. The number of rows does not depend on the routing (`dispatch_rows`), so that shapes are static.

Rounding: each product rounds once, as `linear` does; the weights stay float32, and the combination rounds once.
transformers rounds the weights, and each expert's weighted row, to the model's dtype before it adds them.
Sources: Shazeer et al., arXiv:1701.06538; the Qwen3 technical report, arXiv:2505.09388; transformers `qwen3_moe`.
"""

from __future__ import annotations

from typing import NamedTuple

from array_api_extra import at

from reference.formats import FP8_ACTIVATION_BLOCK, FP8_WEIGHT_BLOCK, Array
from reference.kernels.precision import wide
from reference.kernels.quantize import dequantize_fp8, rounded_to_fp8


class Dispatch(NamedTuple):
    """Where each (token, k) stands among the rows, and whose token each row is."""

    expert_offsets: Array  # i32 [E + 1]: expert e holds the rows from offsets[e] up to offsets[e + 1], padding included
    src_token: Array  # i32 [rows]: -1 on padding
    row_of: Array  # i32 [T, K]: -1 where the (token, k) goes to no expert


def router_top_k(
    logits: Array,  # [T, E]
    k: int,
    *,
    normalize: bool,
) -> tuple[Array, Array]:  # i32 [T, K], f32 [T, K]
    """The k likeliest experts of each token in falling order, and their weights.

    weights = softmax(logits) over all E experts, in float32; with `normalize` (`norm_topk_prob`) divided by the sum
    of the k that were chosen. A tie goes to the lower id. The order is that of the logits: softmax keeps it, and so
    the ids do not depend on how a chip rounds its exponential. A row with a NaN gets NaN weights and valid ids.
    """
    xp = logits.__array_namespace__()
    logits = wide(logits)
    exponentials = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    probabilities = exponentials / xp.sum(exponentials, axis=-1, keepdims=True)
    expert_ids = xp.argsort(-logits, axis=-1, stable=True)[:, :k]
    weights = xp.take_along_axis(probabilities, expert_ids, axis=-1)
    if normalize:
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    return xp.astype(expert_ids, xp.int32), weights


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


def grouped_linear(
    x: Array,  # [rows, K]
    weight: Array,  # [E, N, K]
    expert_offsets: Array,  # i32 [E + 1], multiples of tile
    *,
    tile: int,
) -> Array:  # [rows, N]
    """y = x W[e]^T for the rows of each expert e. A tile of rows belongs to one expert.

    Products are accumulated in float32 and rounded once, to the dtype of x. Rows beyond the last expert give 0
    whatever they hold; padding rows of an expert, being 0 (`gather_rows`), give 0.
    """
    xp = x.__array_namespace__()
    expert_of_tile, is_used = _expert_of_tile(x, expert_offsets, tile)
    products = _tile_products(x, wide(weight[expert_of_tile]), is_used, tile)
    return xp.astype(products, x.dtype)


def grouped_linear_fp8(
    x: Array,  # [rows, K]
    weight: Array,  # e4m3 [E, N, K]
    weight_scale_inv: Array,  # f32 [E, ceil(N / 128), ceil(K / 128)]
    expert_offsets: Array,  # i32 [E + 1], multiples of tile
    *,
    tile: int,
) -> Array:  # [rows, N]
    """y = x W[e]^T for the rows of each expert e, both in e4m3.

    x is quantized for each row and group of 128 channels (a rounding point). Both are then dequantized to float32,
    accumulated in float32 and rounded once, to the dtype of x. Padding rows give 0, as in `grouped_linear`.
    """
    xp = x.__array_namespace__()
    x_hat = rounded_to_fp8(x, block=FP8_ACTIVATION_BLOCK)
    expert_of_tile, is_used = _expert_of_tile(x, expert_offsets, tile)
    factors = xp.astype(weight_scale_inv[expert_of_tile], x_hat.dtype)
    weight_hat = dequantize_fp8(weight[expert_of_tile], factors, block=FP8_WEIGHT_BLOCK)
    return xp.astype(_tile_products(x_hat, weight_hat, is_used, tile), x.dtype)


def _expert_of_tile(x: Array, expert_offsets: Array, tile: int) -> tuple[Array, Array]:
    """The expert of each tile of rows i32 [tiles], and whether it has one bool [tiles]."""
    xp = x.__array_namespace__()
    num_experts = expert_offsets.shape[0] - 1
    first_row = xp.arange(x.shape[0] // tile, dtype=xp.int32) * tile
    # An empty expert ends where it starts, so the count of experts that end at or before a row passes over it.
    expert = xp.sum(expert_offsets[None, 1:] <= first_row[:, None], axis=1, dtype=xp.int32)
    return xp.where(expert < num_experts, expert, 0), expert < num_experts


def _tile_products(x: Array, tile_weights: Array, is_used: Array, tile: int) -> Array:
    """Each tile of x [rows, K] times its own weight f32 [tiles, N, K] transposed, in float32; 0 where unused."""
    xp = x.__array_namespace__()
    tiles, out_features, in_features = tile_weights.shape
    products = xp.matmul(xp.reshape(wide(x), (tiles, tile, in_features)), xp.matrix_transpose(tile_weights))
    return xp.reshape(xp.where(is_used[:, None, None], products, 0.0), (tiles * tile, out_features))


def moe_combine(
    rows: Array,  # [rows, H]
    row_of: Array,  # i32 [T, K]
    weights: Array,  # f32 [T, K]
) -> Array:  # [T, H]
    """y[t] = sum over k, ascending, of weights[t, k] * rows[row_of[t, k]].

    Summed in float32, rounded once to the dtype of `rows`. An unrouted (token, k) contributes 0, whatever its weight.
    """
    xp = rows.__array_namespace__()
    num_tokens, experts_per_token = row_of.shape
    total = xp.zeros((num_tokens, rows.shape[1]), dtype=wide(rows).dtype)
    for k in range(experts_per_token):
        is_routed = row_of[:, k] >= 0
        expert_row = wide(rows[xp.where(is_routed, row_of[:, k], 0)])
        total = total + xp.where(is_routed[:, None], weights[:, k, None] * expert_row, 0.0)
    return xp.astype(total, rows.dtype)

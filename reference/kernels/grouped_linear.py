"""The product of a mixture of experts: each expert's rows (`moe_dispatch`) with that expert's weight.

    y[row] = x[row] W[e]^T      for the rows of each expert e

Rounding: products are accumulated in float32, and rounded once, to the dtype of x, as `linear` does.
Source: Shazeer et al., arXiv:1701.06538.
"""

from __future__ import annotations

from reference.formats import FP8_ACTIVATION_BLOCK, FP8_WEIGHT_BLOCK, Array
from reference.kernels.precision import wide
from reference.kernels.quantize import dequantize_fp8, rounded_to_fp8


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

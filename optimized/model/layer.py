"""A layer of Qwen3 from the panel's kernels alone, for a step of any rows.

    qkv = W rms_norm(x)                     one product; the norm is part of it where rows are few
    q, and k and v in their slots           qk_norm_rope_kv_write, one launch
    x = x + W attention(q)                  the sum is part of the product
    x = x + W (act(gate) * up)              two products, likewise; per expert: `experts.py`

Products begin before the kernel in front of them has ended, with what they read of their weights: a layer's four then
take 96 % of what a copy of their bytes would, and 91 % otherwise (docs/launch-policy.md).

Rounding: the sum of a product and the residual stream is rounded once, where the reference rounds the product before.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimized.device import Device, Tensor, dtype_of, part_of
from optimized.kernels.gated_linear import gated_linear
from optimized.kernels.linear import linear
from optimized.kernels.paged_attention import paged_attention
from optimized.kernels.paged_attention_launch import MOST_QUERIES
from optimized.kernels.prefill_attention import prefill_attention
from optimized.kernels.qk_norm_rope_kv_write import qk_norm_rope_kv_write
from optimized.model.experts import add_experts
from optimized.model.stream import Stream
from optimized.model.weights import AttentionWeights, LayerWeights, Projection
from reference.model.config import ModelConfig

KeysValues = tuple[Tensor, Tensor]  # of a layer, [B, Nkv, bs, D] each


@dataclass(frozen=True)
class RowGroup:
    """Rows that stand one after another and attend in one launch."""

    first_token: int
    num_tokens: int
    max_query_len: int
    query_start: Tensor  # i32 [R + 1], from 0
    seq_lens: Tensor  # i32 [R]
    block_table: Tensor  # i32 [R, M]


@dataclass(frozen=True)
class Positions:
    """Where the tokens of a step stand, and the rotations of every position there is."""

    index: Tensor  # i32 [T]
    slots: Tensor  # i32 [T], -1 writes nothing
    cos: Tensor  # f32 [P, D/2]
    sin: Tensor  # f32 [P, D/2]


def decoder_layer(
    device: Device,
    weights: LayerWeights,
    config: ModelConfig,
    stream: Stream,
    kv: KeysValues,
    positions: Positions,
    groups: tuple[RowGroup, ...],
) -> None:
    """Add a layer to the stream; the keys and values of its tokens go to their slots."""
    qkv = normed_product(stream, weights.input_norm, weights.attention.qkv)
    stream.add_product(attended(device, weights.attention, config, qkv, kv, positions, groups), weights.attention.out)
    if weights.mlp.router is None:
        stream.add_product(gated(stream, weights, config), Projection(weights.mlp.down))
    else:
        add_experts(stream, stream.normed(weights.post_attention_norm), weights.mlp, config)


def normed_product(stream: Stream, norm: Tensor, projection: Projection) -> Tensor:  # [T, out]
    if stream.may_be_normed_by_a_product:
        return linear(stream.x, projection.weight, projection.bias, norm_weight=norm, eps=stream.eps, pdl=True)
    return linear(stream.normed(norm), projection.weight, projection.bias, pdl=True)


def attended(
    device: Device,
    weights: AttentionWeights,
    config: ModelConfig,
    qkv: Tensor,  # [T, (Nq + 2 Nkv) D]; overwritten
    kv: KeysValues,
    positions: Positions,
    groups: tuple[RowGroup, ...],
) -> Tensor:  # [T, Nq D]
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    num_tokens, stride = qkv.shape[0], qkv.stride()[0]

    def heads(first: int, count: int) -> Tensor:
        return part_of(qkv, (num_tokens, count, head_dim), (stride, head_dim, 1), first * head_dim)

    q, k, v = heads(0, num_heads), heads(num_heads, num_kv_heads), heads(num_heads + num_kv_heads, num_kv_heads)
    norms = weights.q_norm, weights.k_norm
    tables = positions.index, positions.cos, positions.sin
    qk_norm_rope_kv_write(q, k, v, *norms, *tables, *kv, positions.slots, config.rms_norm_eps, pdl=True)
    width = num_heads * head_dim
    out = device.empty((num_tokens, width), dtype_of(qkv))
    for group in groups:
        shape = group.num_tokens, num_heads, head_dim
        queries = part_of(q, shape, (stride, head_dim, 1), group.first_token * stride)
        place = part_of(out, shape, (width, head_dim, 1), group.first_token * width)
        of_rows = queries, *kv, group.block_table, group.query_start, group.seq_lens
        if group.max_query_len <= MOST_QUERIES:
            paged_attention(*of_rows, max_query_len=group.max_query_len, pdl=True, out=place)
        else:
            prefill_attention(*of_rows, clear=False, out=place)
    return out


def gated(stream: Stream, weights: LayerWeights, config: ModelConfig) -> Tensor:  # [T, I]
    """act(gate) * up of a dense MLP."""
    weight, norm, kind = weights.mlp.gate_up, weights.post_attention_norm, config.activation
    if stream.may_be_normed_by_a_product:
        return gated_linear(stream.x, weight, kind=kind, norm_weight=norm, eps=stream.eps, pdl=True)
    return gated_linear(stream.normed(norm), weight, kind=kind, pdl=True)

"""Qwen3, dense and mixture of experts, from the reference kernels alone.

One text for NumPy (to audit), for float64 (the oracle) and under `jax.jit` (to serve). For T tokens:

    x = embedding[token_ids]                                                        [T, H]
    for each layer:
        x = x + o_proj(attention(rope(qk_norm(q_proj, k_proj)), v_proj))            of rms_norm(x)
        x = x + down_proj(act(gate_proj) * up_proj)                                 of rms_norm(x); per expert if sparse
    logits = lm_head(rms_norm(x))                                                   [T, V], float32

Rounding: every kernel rounds once, to the model's dtype; so the residual stream is rounded after each addition.
Logits alone stay in float32: in bf16, logits near 20 are 0.125 apart, and the argmax would be a matter of ties.
The router's logits are rounded to the model's dtype before the softmax, as transformers does.
Sources: the Qwen3 technical report, arXiv:2505.09388; transformers `modeling_qwen3.py`, `modeling_qwen3_moe.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reference.formats import Array
from reference.kernels.activation import gated_activation
from reference.kernels.attention import attention
from reference.kernels.embedding import embedding
from reference.kernels.grouped_linear import grouped_linear, grouped_linear_fp8
from reference.kernels.linear import linear, linear_fp8
from reference.kernels.moe_combine import moe_combine
from reference.kernels.moe_dispatch import gather_rows, moe_dispatch
from reference.kernels.precision import wide
from reference.kernels.qk_norm import qk_norm
from reference.kernels.residual import residual_add
from reference.kernels.rms_norm import add_rms_norm, rms_norm
from reference.kernels.rope import rope
from reference.kernels.router_top_k import router_top_k
from reference.model.config import ModelConfig
from reference.model.weights import Layer, Mlp, Projection, Weights

# Rows of one expert are padded to a multiple of this, the tile of the grouped product.
EXPERT_TILE = 16
# Scores are held for this many queries at a time, so that a long prompt needs no [T, T] matrix a head.
QUERY_CHUNK = 512

Attend = Callable[[Array, Array, Array], Array]  # (q [T, Nq, D], k [T, Nkv, D], v [T, Nkv, D]) -> [T, Nq, D]


class Positions(NamedTuple):
    """Where each token stands, and the rotations of every position there is (`rope_table`)."""

    index: Array  # i32 [T]
    cos: Array  # f32 [P, D/2]
    sin: Array  # f32 [P, D/2]


def forward(
    weights: Weights,
    config: ModelConfig,
    token_ids: Array,  # i32 [T], one sequence from its beginning
    positions: Positions,
) -> Array:  # [T, H] the residual stream after the last layer; `logits` reads it
    """The whole sequence, nothing cached."""
    x = embedding(token_ids, weights.embedding)
    for layer in weights.layers:
        x = decoder_layer(layer, config, x, positions, attend_whole)
    return x


def logits(
    weights: Weights,
    config: ModelConfig,
    x: Array,  # [R, H] the rows that need logits
) -> Array:  # f32 [R, V]
    normed = rms_norm(x, weights.norm, config.rms_norm_eps)
    return vocabulary_head(weights, normed)


def vocabulary_head(
    weights: Weights,
    normed: Array,  # [R, H] after the final norm
) -> Array:  # f32 [R, V]
    head = weights.embedding if weights.lm_head is None else weights.lm_head
    return linear(wide(normed), head)


def decoder_layer(
    layer: Layer,
    config: ModelConfig,
    x: Array,  # [T, H] the residual stream
    positions: Positions,
    attend: Attend,
) -> Array:  # [T, H]
    return after_attention(layer, config, x, attend(*before_attention(layer, config, x, positions)))


def before_attention(
    layer: Layer,
    config: ModelConfig,
    x: Array,  # [T, H] the residual stream
    positions: Positions,
) -> tuple[Array, Array, Array]:  # q [T, Nq, D], k [T, Nkv, D], v [T, Nkv, D]
    """Queries, keys and values of each token: the first half of a layer."""
    xp = x.__array_namespace__()
    weights, num_tokens = layer.attention, x.shape[0]
    normed = rms_norm(x, layer.input_norm, config.rms_norm_eps)

    def heads(projection: Projection, count: int) -> Array:
        return xp.reshape(project(normed, projection), (num_tokens, count, config.head_dim))

    q = heads(weights.q_proj, config.num_heads)
    k = heads(weights.k_proj, config.num_kv_heads)
    v = heads(weights.v_proj, config.num_kv_heads)
    q, k = qk_norm(q, k, weights.q_norm, weights.k_norm, config.rms_norm_eps)
    q = rope(q, positions.index, positions.cos, positions.sin)
    k = rope(k, positions.index, positions.cos, positions.sin)
    return q, k, v


def after_attention(
    layer: Layer,
    config: ModelConfig,
    x: Array,  # [T, H] the residual stream, as it came into the layer
    attended: Array,  # [T, Nq, D]
) -> Array:  # [T, H]
    """The second half of a layer: output projection and MLP, each added to the residual stream."""
    normed, x = add_rms_norm(output_projection(layer, attended), x, layer.post_attention_norm, config.rms_norm_eps)
    feed_forward = dense_mlp if layer.mlp.router is None else sparse_mlp
    return residual_add(feed_forward(layer.mlp, config, normed), x)


def output_projection(layer: Layer, attended: Array) -> Array:  # [T, Nq, D] -> [T, H]
    xp = attended.__array_namespace__()
    num_tokens, num_heads, head_dim = attended.shape
    return project(xp.reshape(attended, (num_tokens, num_heads * head_dim)), layer.attention.o_proj)


def attend_whole(q: Array, k: Array, v: Array) -> Array:
    """Causal attention over one whole sequence, a chunk of queries at a time."""
    xp = q.__array_namespace__()
    num_tokens = q.shape[0]
    if num_tokens <= QUERY_CHUNK:
        return attention(q, k, v, start=0)
    chunks = []
    for start in range(0, num_tokens, QUERY_CHUNK):
        end = min(start + QUERY_CHUNK, num_tokens)
        chunks.append(attention(q[start:end], k[:end], v[:end], start=start))
    return xp.concat(chunks, axis=0)


def dense_mlp(weights: Mlp, config: ModelConfig, x: Array) -> Array:  # [T, H] -> [T, H]
    gate, up = project(x, weights.gate_proj), project(x, weights.up_proj)
    return project(gated_activation(gate, up, kind=config.activation), weights.down_proj)


def sparse_mlp(weights: Mlp, config: ModelConfig, x: Array) -> Array:  # [T, H] -> [T, H]
    assert weights.router is not None
    router_logits = project(x, weights.router)  # [T, E]
    expert_ids, expert_weights = router_top_k(
        router_logits, config.num_experts_per_token, normalize=config.norm_topk_prob
    )
    rows = moe_dispatch(expert_ids, config.num_experts, tile=EXPERT_TILE)

    def product(x: Array, projection: Projection) -> Array:
        if projection.scale_inv is None:
            return grouped_linear(x, projection.weight, rows.expert_offsets, tile=EXPERT_TILE)
        return grouped_linear_fp8(x, projection.weight, projection.scale_inv, rows.expert_offsets, tile=EXPERT_TILE)

    x = gather_rows(x, rows.src_token)
    gate, up = product(x, weights.gate_proj), product(x, weights.up_proj)
    out = product(gated_activation(gate, up, kind=config.activation), weights.down_proj)
    return moe_combine(out, rows.row_of, expert_weights)


def project(x: Array, projection: Projection) -> Array:  # [T, in] -> [T, out]
    if projection.scale_inv is None:
        return linear(x, projection.weight, projection.bias)
    return linear_fp8(x, projection.weight, projection.scale_inv, projection.bias)

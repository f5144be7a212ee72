"""Which matrix products a decode step makes: projections, the MLP or the mixture of experts, and the vocabulary."""

from __future__ import annotations

from optimized.arguments import HALVES
from optimized.device import CompileOnly, Outline
from optimized.kernels.few_rows_launch import MOST_ROWS
from optimized.kernels.few_rows_routed import MOST_PAIRS
from optimized.kernels.gated_linear import gated_linear
from optimized.kernels.grouped_gated_linear import grouped_gated_linear
from optimized.kernels.grouped_linear import grouped_linear
from optimized.kernels.linear import linear
from optimized.kernels.moe_combine import moe_combine
from optimized.kernels.moe_dispatch import moe_dispatch
from optimized.kernels.routed_gated_linear import routed_gated_linear
from optimized.kernels.routed_linear import routed_linear
from optimized.kernels.vocabulary_head import vocabulary_head
from reference.model.config import ModelConfig


def launch_products(config: ModelConfig, device: CompileOnly, num_tokens: int) -> None:
    """On outlines, as a step of so many tokens launches them: in the invariant mode (rung 3 of the design), each before
    the one before it has ended. The same weights without that are `linear_many_rows`'s from 33 tokens on. Weights that
    are not of 16 bits have no products here."""
    dtype, hidden = config.dtype.name, config.hidden_size
    if dtype not in HALVES:
        return

    def tensor(*shape: int, of: str = dtype) -> Outline:
        return Outline(shape, of, device)

    x, embeddings = tensor(num_tokens, hidden), tensor(config.vocab_size, hidden)
    vocabulary_head(x, embeddings, pdl=True)
    if num_tokens <= MOST_ROWS:
        vocabulary_head(x, embeddings, logits=False, token_ids=True, pdl=True)
    if config.fp8_blocks:
        return
    in_decode = {"invariant": True, "pdl": True}
    heads = config.num_heads * config.head_dim
    features = heads + 2 * config.num_kv_heads * config.head_dim
    biases = (tensor(features), tensor(hidden)) if config.attention_bias else (None, None)
    linear(x, tensor(features, hidden), biases[0], **in_decode)
    linear(tensor(num_tokens, heads), tensor(hidden, heads), biases[1], x, **in_decode)
    if not all(config.sparse_layers):
        inner = config.intermediate_size
        gated_linear(x, tensor(2 * inner, hidden), kind=config.activation, **in_decode)
        linear(tensor(num_tokens, inner), tensor(hidden, inner), None, x, **in_decode)
    if any(config.sparse_layers):
        _launch_experts(config, device, num_tokens)


def _launch_experts(config: ModelConfig, device: CompileOnly, num_tokens: int) -> None:
    """Of all experts. Tokens are routed by the products themselves, up to as many pairs as these sort; more are brought
    together by expert first."""
    dtype, hidden, inner = config.dtype.name, config.hidden_size, config.moe_intermediate_size
    num_experts, top_k = config.num_experts, config.num_experts_per_token
    x = Outline((num_tokens, hidden), dtype, device)
    gate_up = Outline((num_experts, 2 * inner, hidden), dtype, device)
    down = Outline((num_experts, hidden, inner), dtype, device)
    ids, weights = (Outline((num_tokens, top_k), of, device) for of in ("int32", "float32"))
    if num_tokens * top_k <= MOST_PAIRS:
        rows = routed_gated_linear(x, gate_up, ids, kind=config.activation, pdl=True)
        routed_linear(rows, down, ids, weights, x, pdl=True)
    elif num_tokens * top_k <= MOST_ROWS * num_experts:
        offsets, src_token, row_of, _ = moe_dispatch(x, ids, num_experts, tile=1)
        rows = grouped_gated_linear(x, gate_up, offsets, src_token, kind=config.activation, pdl=True)
        moe_combine(grouped_linear(rows, down, offsets, pdl=True), row_of, weights)

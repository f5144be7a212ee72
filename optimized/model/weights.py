"""A model's weights as the panel's products take them: projections of one input in one matrix, experts in one stack.

    qkv [(Nq + 2 Nkv) D, H]      q above k above v
    gate_up [2 I, H]             gate above up; [E, 2 I, H] for experts

Memory comes first, then each tensor of the checkpoint goes to its place in it, one after another: the host never holds
two of them, nor any twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from optimized.device import Tensor, part_of
from optimized.model.supported import check_supported
from reference.model.config import ModelConfig
from reference.model.tensors import as_specified, checkpoint_tensors

Empty = Callable[[tuple[int, ...], str], Tensor]
Fill = Callable[[Tensor, np.ndarray], None]


@dataclass(frozen=True)
class Projection:
    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]


@dataclass(frozen=True)
class AttentionWeights:
    qkv: Projection
    out: Projection  # [H, Nq D]
    q_norm: Tensor  # [D]
    k_norm: Tensor  # [D]


@dataclass(frozen=True)
class MlpWeights:
    """A mixture of experts where there is a router."""

    gate_up: Tensor
    down: Tensor  # [H, I] or [E, H, I]
    router: Tensor | None  # [E, H]


@dataclass(frozen=True)
class LayerWeights:
    input_norm: Tensor  # [H]
    attention: AttentionWeights
    post_attention_norm: Tensor  # [H]
    mlp: MlpWeights


@dataclass(frozen=True)
class ModelWeights:
    embedding: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [H]
    head: Tensor  # [V, H]; the embedding where they are tied


def allocated(config: ModelConfig, empty: Empty) -> ModelWeights:
    """Memory for a model's weights. Errors: UnsupportedModel."""
    check_supported(config)
    dtype, hidden, head_dim = config.dtype.name, config.hidden_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def tensor(*shape: int) -> Tensor:
        return empty(shape, dtype)

    def projection(out_features: int, in_features: int) -> Projection:
        bias = tensor(out_features) if config.attention_bias else None
        return Projection(tensor(out_features, in_features), bias)

    def mlp(*, is_sparse: bool) -> MlpWeights:
        if is_sparse:
            experts, inner = config.num_experts, config.moe_intermediate_size
            router = tensor(experts, hidden)
            return MlpWeights(tensor(experts, 2 * inner, hidden), tensor(experts, hidden, inner), router)
        inner = config.intermediate_size
        return MlpWeights(tensor(2 * inner, hidden), tensor(hidden, inner), None)

    def layer(*, is_sparse: bool) -> LayerWeights:
        qkv, out = projection(q_size + 2 * kv_size, hidden), projection(hidden, q_size)
        attention = AttentionWeights(qkv, out, tensor(head_dim), tensor(head_dim))
        return LayerWeights(tensor(hidden), attention, tensor(hidden), mlp(is_sparse=is_sparse))

    embedding = tensor(config.vocab_size, hidden)
    layers = tuple(layer(is_sparse=is_sparse) for is_sparse in config.sparse_layers)
    head = embedding if config.tie_word_embeddings else tensor(config.vocab_size, hidden)
    return ModelWeights(embedding, layers, tensor(hidden), head)


def load(weights: ModelWeights, config: ModelConfig, tensors: Mapping[str, np.ndarray], fill: Fill) -> None:
    """Put a checkpoint's tensors (Hugging Face names) into their places.

    Errors: KeyError naming a tensor that is missing; ValueError naming one of another shape, and one of integers.
    """
    specs = checkpoint_tensors(config)

    def take(name: str, place: Tensor) -> None:
        fill(place, as_specified(name, tensors[name], specs[name]))

    def stacked(names: list[str], place: Tensor) -> None:
        """Tensors one above another."""
        first = 0
        for name in names:
            shape = specs[name].shape
            strides = place.stride()[-len(shape) :]
            take(name, part_of(place, shape, strides, first * strides[0]))
            first += shape[0]

    def attention(name: str, place: AttentionWeights) -> None:
        for suffix, qkv, out in (
            ("weight", place.qkv.weight, place.out.weight),
            ("bias", place.qkv.bias, place.out.bias),
        ):
            if qkv is not None and out is not None:
                stacked([f"{name}.{projected}_proj.{suffix}" for projected in "qkv"], qkv)
                take(f"{name}.o_proj.{suffix}", out)
        take(f"{name}.q_norm.weight", place.q_norm)
        take(f"{name}.k_norm.weight", place.k_norm)

    def mlp(name: str, place: MlpWeights) -> None:
        stacked([f"{name}.{projected}_proj.weight" for projected in ("gate", "up")], place.gate_up)
        take(f"{name}.down_proj.weight", place.down)

    def experts(name: str, place: MlpWeights) -> None:
        take(f"{name}.gate.weight", place.router)
        for expert in range(config.num_experts):
            of_expert = partial(_of_expert, expert)
            mlp(f"{name}.experts.{expert}", MlpWeights(of_expert(place.gate_up), of_expert(place.down), None))

    take("model.embed_tokens.weight", weights.embedding)
    for number, layer in enumerate(weights.layers):
        name = f"model.layers.{number}"
        take(f"{name}.input_layernorm.weight", layer.input_norm)
        attention(f"{name}.self_attn", layer.attention)
        take(f"{name}.post_attention_layernorm.weight", layer.post_attention_norm)
        (mlp if layer.mlp.router is None else experts)(f"{name}.mlp", layer.mlp)
    take("model.norm.weight", weights.norm)
    if not config.tie_word_embeddings:
        take("lm_head.weight", weights.head)


def _of_expert(expert: int, stack: Tensor) -> Tensor:
    _, rows, columns = stack.shape
    return part_of(stack, (rows, columns), stack.stride()[1:], expert * stack.stride()[0])

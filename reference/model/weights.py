"""A model's weights as nested named tuples: pytrees to JAX, plain arrays to NumPy.

Experts of a layer are stacked, [E, out, in], so that a tile of rows picks its expert by index.
Nothing is held twice: each tensor is taken from the checkpoint once, in the order of use, and handed to `put`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from reference.formats import Array
from reference.kernels.precision import wide
from reference.model.config import ModelConfig
from reference.model.tensors import as_specified, checkpoint_tensors


class Projection(NamedTuple):
    """y = x W^T + b. `scale_inv` is there for an e4m3 weight alone: one factor a 128 x 128 block, multiplied."""

    weight: Array  # [out, in], or [E, out, in] for experts
    scale_inv: Array | None = None  # f32 [ceil(out/128), ceil(in/128)], or with E in front
    bias: Array | None = None  # [out]


class Attention(NamedTuple):
    q_proj: Projection  # [Nq D, H]
    k_proj: Projection  # [Nkv D, H]
    v_proj: Projection  # [Nkv D, H]
    o_proj: Projection  # [H, Nq D]
    q_norm: Array  # [D], shared by all query heads
    k_norm: Array  # [D], shared by all key heads


class Mlp(NamedTuple):
    """A gated MLP; a mixture of experts where there is a router."""

    gate_proj: Projection  # [I, H] or [E, I, H]
    up_proj: Projection  # [I, H] or [E, I, H]
    down_proj: Projection  # [H, I] or [E, H, I]
    router: Projection | None = None  # [E, H]


class Layer(NamedTuple):
    input_norm: Array  # [H]
    attention: Attention
    post_attention_norm: Array  # [H]
    mlp: Mlp


class MultiTokenPrediction(NamedTuple):
    embedding_norm: Array  # [H]
    hidden_norm: Array  # [H]
    fc: Projection  # [H, 2H]
    layers: tuple[Layer, ...]
    norm: Array  # [H]


class Weights(NamedTuple):
    embedding: Array  # [V, H]
    layers: tuple[Layer, ...]
    norm: Array  # [H]
    lm_head: Array | None  # [V, H]; None where it is the embedding
    mtp: MultiTokenPrediction | None


def load_weights(
    config: ModelConfig, tensors: Mapping[str, np.ndarray], put: Callable[[np.ndarray], Array] = lambda array: array
) -> Weights:
    """Arrange a checkpoint's tensors (Hugging Face names) into `Weights`.

    A tensor stored in another floating-point format than the config's is rounded to it, nearest even.
    put: where an array should live (`jnp.asarray` for JAX).
    Errors: KeyError naming a tensor that is missing; ValueError naming one of the wrong shape, one that is e4m3 where
    the config has no FP8 or the reverse, one of integers, and an expert that is quantized otherwise than its fellows.
    """
    specs = checkpoint_tensors(config)

    def read(name: str) -> np.ndarray:
        return as_specified(name, tensors[name], specs[name])

    def vector(name: str) -> Array:
        return put(read(f"{name}.weight"))

    def projection(name: str) -> Projection:
        def optional(suffix: str) -> Array | None:
            return put(read(name + suffix)) if name + suffix in specs else None

        return Projection(put(read(f"{name}.weight")), optional(".weight_scale_inv"), optional(".bias"))

    def experts(name: str, projected: str) -> Projection:
        def stacked(suffix: str) -> Array | None:
            names = [f"{name}.{expert}.{projected}{suffix}" for expert in range(config.num_experts)]
            if names[0] not in specs:
                return None
            spec = specs[names[0]]
            stack: np.ndarray = np.empty((config.num_experts, *spec.shape), spec.format.dtype)
            for expert, tensor in enumerate(names):
                if specs.get(tensor) != spec:
                    raise ValueError(
                        f"tensor {tensor}: the experts of a layer are all quantized or none; see {names[0]}"
                    )
                stack[expert] = read(tensor)
            return put(stack)

        return Projection(stacked(".weight"), stacked(".weight_scale_inv"))

    def mlp(name: str, sparse: bool) -> Mlp:
        if not sparse:
            gate, up, down = (projection(f"{name}.{p}_proj") for p in ("gate", "up", "down"))
            return Mlp(gate, up, down)
        gate, up, down = (experts(f"{name}.experts", f"{p}_proj") for p in ("gate", "up", "down"))
        return Mlp(gate, up, down, router=projection(f"{name}.gate"))

    def layer(name: str, sparse: bool) -> Layer:
        attention = f"{name}.self_attn"
        return Layer(
            vector(f"{name}.input_layernorm"),
            Attention(
                *(projection(f"{attention}.{p}_proj") for p in "qkvo"),
                *(vector(f"{attention}.{p}_norm") for p in "qk"),
            ),
            vector(f"{name}.post_attention_layernorm"),
            mlp(f"{name}.mlp", sparse),
        )

    def mtp() -> MultiTokenPrediction:
        return MultiTokenPrediction(
            vector("mtp.pre_fc_norm_embedding"),
            vector("mtp.pre_fc_norm_hidden"),
            projection("mtp.fc"),
            tuple(layer(f"mtp.layers.{i}", any(config.sparse_layers)) for i in range(config.num_mtp_layers)),
            vector("mtp.norm"),
        )

    return Weights(
        embedding=vector("model.embed_tokens"),
        layers=tuple(layer(f"model.layers.{i}", sparse) for i, sparse in enumerate(config.sparse_layers)),
        norm=vector("model.norm"),
        lm_head=None if config.tie_word_embeddings else vector("lm_head"),
        mtp=mtp() if config.num_mtp_layers else None,
    )


def widened(weights: Weights) -> Weights:
    """The same model with the weights of its projections in float32, and the vocabulary head apart from the embedding.

    Products are float32 in any case (`reference.kernels.precision`), so results are the same to the bit; what is saved
    is the conversion in every step. e4m3 weights stay as they are: their products are defined on the quantized values.
    """

    def wider(projection: Projection) -> Projection:
        return projection if projection.scale_inv is not None else projection._replace(weight=wide(projection.weight))

    def layer(layer: Layer) -> Layer:
        attention, mlp = layer.attention, layer.mlp
        return layer._replace(
            attention=attention._replace(
                **{name: wider(getattr(attention, name)) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
            ),
            mlp=mlp._replace(
                **{name: wider(getattr(mlp, name)) for name in ("gate_proj", "up_proj", "down_proj")},
                router=None if mlp.router is None else wider(mlp.router),
            ),
        )

    head = weights.embedding if weights.lm_head is None else weights.lm_head
    return weights._replace(layers=tuple(map(layer, weights.layers)), lm_head=wide(head))

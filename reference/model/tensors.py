"""The tensors a Qwen3 checkpoint holds, by their Hugging Face names. Declarations only: no arithmetic, no JAX.

Projections are stored [out_features, in_features], applied as y = x W^T.
FP8 checkpoints store a projection X as `X.weight` in e4m3 and `X.weight_scale_inv` in float32,
one factor for each block of 128 x 128, which is MULTIPLIED.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference.formats import ACTIVATION_FORMATS, FLOAT8_E4M3, FLOAT32, FLOAT64, FP8_WEIGHT_BLOCK, Array, Format
from reference.model.config import ModelConfig


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's shape and the format it is stored in."""

    shape: tuple[int, ...]
    format: Format


def checkpoint_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor that a checkpoint of this shape must hold, in the order they are used.

    A tied checkpoint has no `lm_head.weight`; `mtp.*` are there only if the config counts MTP layers.
    """
    tensors: dict[str, TensorSpec] = {}
    dtype, hidden = config.dtype, config.hidden_size

    def vector(name: str, size: int) -> None:
        tensors[name] = TensorSpec((size,), dtype)

    def projection(name: str, out_features: int, in_features: int, quantize: bool = True) -> None:
        if config.fp8_blocks and quantize and not _listed(name, config.unquantized_modules):
            rows, columns = FP8_WEIGHT_BLOCK
            tensors[f"{name}.weight"] = TensorSpec((out_features, in_features), FLOAT8_E4M3)
            blocks = (-(-out_features // rows), -(-in_features // columns))
            tensors[f"{name}.weight_scale_inv"] = TensorSpec(blocks, FLOAT32)
        else:
            tensors[f"{name}.weight"] = TensorSpec((out_features, in_features), dtype)

    def mlp(name: str, size: int) -> None:
        projection(f"{name}.gate_proj", size, hidden)
        projection(f"{name}.up_proj", size, hidden)
        projection(f"{name}.down_proj", hidden, size)

    def layer(name: str, sparse: bool) -> None:
        vector(f"{name}.input_layernorm.weight", hidden)
        attention = f"{name}.self_attn"
        for projected, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            projection(f"{attention}.{projected}_proj", heads * config.head_dim, hidden)
            if config.attention_bias:
                vector(f"{attention}.{projected}_proj.bias", heads * config.head_dim)
        projection(f"{attention}.o_proj", hidden, config.num_heads * config.head_dim)
        if config.attention_bias:
            vector(f"{attention}.o_proj.bias", hidden)
        vector(f"{attention}.q_norm.weight", config.head_dim)
        vector(f"{attention}.k_norm.weight", config.head_dim)
        vector(f"{name}.post_attention_layernorm.weight", hidden)
        if sparse:
            projection(f"{name}.mlp.gate", config.num_experts, hidden, quantize=False)
            for expert in range(config.num_experts):
                mlp(f"{name}.mlp.experts.{expert}", config.moe_intermediate_size)
        else:
            mlp(f"{name}.mlp", config.intermediate_size)

    tensors["model.embed_tokens.weight"] = TensorSpec((config.vocab_size, hidden), dtype)
    for index, sparse in enumerate(config.sparse_layers):
        layer(f"model.layers.{index}", sparse)
    vector("model.norm.weight", hidden)
    if not config.tie_word_embeddings:
        projection("lm_head", config.vocab_size, hidden, quantize=False)
    if config.num_mtp_layers:
        vector("mtp.pre_fc_norm_embedding.weight", hidden)
        vector("mtp.pre_fc_norm_hidden.weight", hidden)
        projection("mtp.fc", hidden, 2 * hidden, quantize=False)
        for index in range(config.num_mtp_layers):
            layer(f"mtp.layers.{index}", sparse=any(config.sparse_layers))
        vector("mtp.norm.weight", hidden)
    return tensors


def as_specified(name: str, tensor: np.ndarray, spec: TensorSpec) -> Array:
    """A checkpoint's tensor, in the format that the config asks for: another floating-point format is rounded to it,
    nearest even.

    Errors: ValueError that names one of another shape, one that is e4m3 where the config has no FP8 or the reverse, and
    one of integers.
    """
    if tensor.shape != spec.shape:
        raise ValueError(f"tensor {name} has shape {list(tensor.shape)}; the config asks for {list(spec.shape)}")
    # Integers, and 8-bit floats but where they belong, are codes of some other quantization, not values to be rounded.
    known = (FLOAT8_E4M3,) if spec.format is FLOAT8_E4M3 else (FLOAT64, *ACTIVATION_FORMATS)
    if tensor.dtype not in [format_.dtype for format_ in known]:
        raise ValueError(f"tensor {name} is {tensor.dtype}; the config asks for {spec.format.name}")
    return tensor.astype(spec.format.dtype, copy=False)


def _listed(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a module is named, by its whole name, by one that holds it or by the end of its name.

    As transformers `should_convert_module`: "model.layers.1" does not name what is in layer 11, nor "mlp.gate" what is
    called gate_proj.
    """
    return any(name.endswith(module) or name.startswith(f"{module}.") for module in modules)

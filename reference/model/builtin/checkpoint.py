"""A built-in model's weights on their way between a checkpoint's tensors and the pytree that is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from reference.formats import FLOAT32
from reference.model.config import ModelConfig
from reference.model.tensors import checkpoint_tensors
from reference.model.weights import Layer, Mlp, Projection, Weights, load_weights

BUILTIN = Path(__file__).parent
NAMES = ("dense", "moe")
INITIAL_STD = 0.02


def initial_weights(config: ModelConfig, seed: int) -> Weights:
    """Fresh float32 weights: normal, smaller where a layer adds to the residual stream; norms are 1."""
    random = np.random.default_rng(seed)
    wide = replace(config, dtype=FLOAT32)
    adds_to_stream = ("o_proj.weight", "down_proj.weight")
    tensors = {}
    for name, spec in checkpoint_tensors(wide).items():
        if len(spec.shape) == 1:
            tensors[name] = np.ones(spec.shape, np.float32)
        else:
            std = INITIAL_STD / (2 * config.num_layers) ** 0.5 if name.endswith(adds_to_stream) else INITIAL_STD
            tensors[name] = random.normal(0.0, std, spec.shape).astype(np.float32)
    return load_weights(wide, tensors, put=jnp.asarray)


def named_tensors(config: ModelConfig, weights: Weights) -> dict[str, np.ndarray]:
    """The tensors under their Hugging Face names, rounded to the config's dtype: `load_weights` undone."""
    tensors: dict[str, np.ndarray] = {}

    def put(name: str, value: object) -> None:
        tensors[f"{name}.weight"] = np.asarray(value).astype(config.dtype.dtype)

    def mlp(name: str, weights: Mlp) -> None:
        projections: dict[str, Projection] = {
            "gate_proj": weights.gate_proj,
            "up_proj": weights.up_proj,
            "down_proj": weights.down_proj,
        }
        for projected, projection in projections.items():
            if weights.router is None:
                put(f"{name}.{projected}", projection.weight)
                continue
            for expert in range(config.num_experts):
                put(f"{name}.experts.{expert}.{projected}", projection.weight[expert])
        if weights.router is not None:
            put(f"{name}.gate", weights.router.weight)

    def layer(name: str, weights: Layer) -> None:
        put(f"{name}.input_layernorm", weights.input_norm)
        attention = weights.attention
        for projected, projection in zip("qkvo", attention[:4], strict=True):
            put(f"{name}.self_attn.{projected}_proj", projection.weight)
        put(f"{name}.self_attn.q_norm", attention.q_norm)
        put(f"{name}.self_attn.k_norm", attention.k_norm)
        put(f"{name}.post_attention_layernorm", weights.post_attention_norm)
        mlp(f"{name}.mlp", weights.mlp)

    put("model.embed_tokens", weights.embedding)
    for index, part in enumerate(weights.layers):
        layer(f"model.layers.{index}", part)
    put("model.norm", weights.norm)
    if weights.lm_head is not None:
        put("lm_head", weights.lm_head)
    if weights.mtp is not None:
        put("mtp.pre_fc_norm_embedding", weights.mtp.embedding_norm)
        put("mtp.pre_fc_norm_hidden", weights.mtp.hidden_norm)
        put("mtp.fc", weights.mtp.fc.weight)
        for index, part in enumerate(weights.mtp.layers):
            layer(f"mtp.layers.{index}", part)
        put("mtp.norm", weights.mtp.norm)
    return tensors


def save(directory: Path, config: ModelConfig, weights: Weights) -> int:
    """Write `model.safetensors`; its size in bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.safetensors"
    save_file(named_tensors(config, weights), path, metadata={"format": "pt"})
    return path.stat().st_size


def load(config: ModelConfig, directory: Path) -> Weights:
    """The weights in the config's dtype, as a server loads them."""
    return load_weights(config, load_file(directory / "model.safetensors"), put=jnp.asarray)

"""Random Qwen3 models of several shapes, made and saved by transformers: the oracle's side of the model tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from reference.formats import FLOAT8_E4M3
from reference.model.config import ModelConfig
from reference.model.tensors import checkpoint_tensors

VOCAB_SIZE = 199
DENSE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
SPARSE: dict[str, Any] = DENSE | {
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}


@dataclass(frozen=True)
class Shape:
    """A configuration, and keys that are struck from the saved `config.json`."""

    options: dict[str, Any]
    struck: tuple[str, ...] = ()

    @property
    def sparse(self) -> bool:
        return "num_experts" in self.options


SHAPES = {
    "tied, one query head a KV head": Shape(DENSE),
    "untied, biased, head_dim apart, 4 query heads a KV head": Shape(
        DENSE
        | {"tie_word_embeddings": False, "attention_bias": True, "head_dim": 24, "num_attention_heads": 8}
        | {"num_key_value_heads": 2}
    ),
    "YaRN, 8 query heads a KV head": Shape(
        DENSE | {"num_attention_heads": 8, "num_key_value_heads": 1, "rope_parameters": YARN}
    ),
    "linear RoPE, GELU": Shape(
        DENSE | {"hidden_act": "gelu", "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}}
    ),
    "sparse, normalised": Shape(SPARSE),
    "sparse and dense mixed, not normalised": Shape(
        SPARSE | {"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": False}
    ),
    "sparse, norm_topk_prob missing": Shape(SPARSE | {"norm_topk_prob": False}, struck=("norm_topk_prob",)),
}


def saved_model(shape: Shape, directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Random weights of that shape, saved to `directory` the way transformers saves any model."""
    torch.manual_seed(20261130)
    if shape.sparse:
        model: PreTrainedModel = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape.options))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape.options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Every parameter is random: transformers' own start (norms 1, biases 0) would hide a mix-up.
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("embed_tokens.weight"):
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3)
    model = model.to(dtype).eval()
    model.save_pretrained(directory)
    if shape.struck:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        assert all(key in config for key in shape.struck)
        path.write_text(json.dumps({k: v for k, v in config.items() if k not in shape.struck}))
    return model


def random_checkpoint(
    model_type: str, dtype: str = "float32", **options: Any
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """A small config and random tensors for it, without transformers."""
    raw = (SPARSE if model_type == "qwen3_moe" else DENSE) | {"model_type": model_type, "dtype": dtype} | options
    config = ModelConfig.from_dict(raw)
    rng = np.random.default_rng(20261130)
    tensors = {}
    for name, spec in checkpoint_tensors(config).items():
        if name.endswith("norm.weight") or ".pre_fc_norm" in name:
            values = rng.uniform(0.5, 1.5, spec.shape)
        elif name.endswith("scale_inv"):
            values = rng.uniform(0.5, 1.5, spec.shape) / 512
        else:
            values = rng.standard_normal(spec.shape) * 1.5 * spec.shape[-1] ** -0.5
            values = np.clip(values * 512, -448, 448) if spec.format is FLOAT8_E4M3 else values
        tensors[name] = values.astype(spec.format.dtype)
    return config, tensors

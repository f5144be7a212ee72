"""`config.json` in both spellings, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference.formats import BFLOAT16, FLOAT32
from reference.model.config import ConfigError, ModelConfig, RopeConfig
from reference.model.tensors import checkpoint_tensors

SHAPES = Path(__file__).parents[3] / "reference" / "model" / "shapes"
BASE: dict[str, Any] = json.loads((SHAPES / "qwen3-30b-a3b.json").read_text())


def changed(**values: Any) -> dict[str, Any]:
    return {k: v for k, v in (BASE | values).items() if v is not ...}


def test_both_spellings_are_one_config() -> None:
    new = changed(
        num_experts=...,
        num_local_experts=128,
        rope_theta=...,
        rope_scaling=...,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        torch_dtype=...,
        dtype="bfloat16",
    )
    assert ModelConfig.from_dict(new) == ModelConfig.from_dict(BASE)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_yarn(key: str) -> None:
    yarn = {key: "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = ModelConfig.from_dict(changed(rope_scaling=yarn))
    assert config.rope == RopeConfig(1e6, "yarn", 4.0, 32768)


def test_defaults() -> None:
    config = ModelConfig.from_dict(changed(norm_topk_prob=..., head_dim=..., torch_dtype=..., mlp_only_layers=...))
    assert config.norm_topk_prob is False
    assert config.head_dim == 2048 // 32
    assert config.dtype == BFLOAT16
    assert all(config.sparse_layers)
    assert ModelConfig.from_dict(changed(torch_dtype="float32")).dtype == FLOAT32


def test_sparse_layers() -> None:
    config = ModelConfig.from_dict(changed(num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert config.sparse_layers == (False, True, False, False, False, True)


REFUSED = {
    "model_type": {"model_type": "llama"},
    "hidden_size": {"hidden_size": ...},
    "num_hidden_layers": {"num_hidden_layers": 0},
    "num_attention_heads": {"num_key_value_heads": 5},
    "head_dim": {"head_dim": 63},
    "vocab_size": {"vocab_size": "many"},
    "rms_norm_eps": {"rms_norm_eps": -1e-6},
    "rope_theta": {"rope_theta": True},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "longrope": {"rope_scaling": {"type": "longrope", "factor": 2.0}},
    "factor": {"rope_scaling": {"type": "yarn"}},
    "use_sliding_window": {"use_sliding_window": True},
    "sliding": {"layer_types": ["sliding_attention"] * 48},
    "hidden_act": {"hidden_act": "relu"},
    "dtype": {"torch_dtype": "int8"},
    "float8_e4m3fn": {"torch_dtype": "float8_e4m3fn"},
    "quantization_config": {"quantization_config": {"quant_method": "awq"}},
    "activation_scheme": {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "static"}
    },
    "num_experts_per_tok": {"num_experts_per_tok": 129},
    "moe_intermediate_size": {"moe_intermediate_size": ...},
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        ModelConfig.from_dict(changed(**REFUSED[word]))


def test_dynamic_says_why() -> None:
    with pytest.raises(ConfigError, match="cached"):
        ModelConfig.from_dict(changed(rope_scaling={"rope_type": "dynamic", "factor": 2.0}))


def test_a_file_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json"):
        ModelConfig.from_file(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        ModelConfig.from_file(path)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("0.6b", 0.596),
        ("1.7b", 1.72),
        ("4b", 4.02),
        ("8b", 8.19),
        ("14b", 14.77),
        ("32b", 32.76),
        ("30b-a3b", 30.53),
        ("235b-a22b", 235.09),
    ],
)
def test_shapes_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    tensors = checkpoint_tensors(ModelConfig.from_file(SHAPES / f"qwen3-{name}.json"))
    count = 0
    for spec in tensors.values():
        size = 1
        for extent in spec.shape:
            size *= extent
        count += size
    assert count / 1e9 == pytest.approx(billions, rel=2e-3)


def test_fp8_blocks_follow_the_config() -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    tensors = checkpoint_tensors(ModelConfig.from_dict(changed(quantization_config=quantization)))
    scale = tensors["model.layers.0.mlp.experts.5.down_proj.weight_scale_inv"]
    assert scale.shape == (2048 // 128, 768 // 128)
    assert "model.layers.0.mlp.gate.weight_scale_inv" not in tensors
    assert "lm_head.weight_scale_inv" not in tensors

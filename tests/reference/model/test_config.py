"""`config.json` in both spellings, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Qwen3Config, Qwen3MoeConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from reference.formats import BFLOAT16, FLOAT8_E4M3, FLOAT32
from reference.model.config import ConfigError, ModelConfig, RopeConfig
from reference.model.rope_table import rope_frequencies
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


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
ROPE_SPELLINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rope_scaling null": {"rope_scaling": None, "rope_theta": 5e6},
    "yarn": {"rope_scaling": YARN, "rope_theta": 1e6},
    "yarn, every field": {
        "rope_scaling": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25},
        "rope_theta": 1e6,
    },
    "yarn, its original context missing": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1e6},
    "yarn, another original context beside it": {"rope_scaling": YARN, "original_max_position_embeddings": 4096},
    "both, the old one counts": {
        "rope_scaling": {"type": "linear", "factor": 3.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 7e5},
    },
    "rope_theta in both, the inner one counts": {
        "rope_theta": 3e5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7e5},
    },
    "rope_theta beside": {"rope_theta": 3e5, "rope_parameters": {"rope_type": "linear", "factor": 1.5}},
}


@pytest.mark.parametrize("name", ROPE_SPELLINGS)
def test_frequencies_are_those_of_transformers_however_they_are_spelt(name: str) -> None:
    raw = changed(rope_scaling=..., rope_theta=..., **{"model_type": "qwen3"}) | ROPE_SPELLINGS[name]
    theirs = Qwen3RotaryEmbedding(Qwen3Config(**json.loads(json.dumps(raw))))
    ours, factor = rope_frequencies(ModelConfig.from_dict(raw).rope, raw["head_dim"])
    np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=1e-5)
    assert factor == pytest.approx(theirs.attention_scaling)


STATED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@pytest.mark.parametrize("theirs", [Qwen3Config, Qwen3MoeConfig])
def test_what_is_missing_has_the_value_that_transformers_gives_it(theirs: Any) -> None:
    model_type = theirs.model_type
    raw = {name: BASE[name] for name in (*STATED, "moe_intermediate_size")}
    expected = theirs(**raw)
    config = ModelConfig.from_dict(raw | {"model_type": model_type})
    assert config.num_kv_heads == expected.num_key_value_heads
    assert config.head_dim == getattr(expected, "head_dim", 2048 // 32)
    for name in ("rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "attention_bias"):
        assert getattr(config, name) == getattr(expected, name), name
    assert config.activation == expected.hidden_act
    assert config.rope == RopeConfig(expected.rope_parameters["rope_theta"])
    assert config.dtype == BFLOAT16
    assert config.num_mtp_layers == 0 and not config.fp8_blocks
    assert config.sparse_layers == (model_type == "qwen3_moe",) * 48
    if model_type == "qwen3_moe":
        assert config.num_experts == expected.num_experts
        assert config.num_experts_per_token == expected.num_experts_per_tok
        assert config.norm_topk_prob is expected.norm_topk_prob is False


def test_null() -> None:
    names = ("norm_topk_prob", "mlp_only_layers", "num_key_value_heads", "head_dim", "quantization_config")
    config = ModelConfig.from_dict(changed(num_attention_heads=16, **dict.fromkeys(names)))
    assert config.norm_topk_prob is False
    assert all(config.sparse_layers)
    assert config.num_kv_heads == 16
    assert config.head_dim == 2048 // 16


def test_dtype() -> None:
    assert ModelConfig.from_dict(changed(torch_dtype="float32")).dtype == FLOAT32
    assert ModelConfig.from_dict(changed(torch_dtype="float16", dtype="torch.float32")).dtype == FLOAT32


def test_no_experts_is_a_dense_model() -> None:
    config = ModelConfig.from_dict(changed(num_experts=0))
    assert config.num_experts == 0 and not any(config.sparse_layers)


def test_sparse_layers() -> None:
    config = ModelConfig.from_dict(changed(num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert config.sparse_layers == (False, True, False, False, False, True)


FP8: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
REFUSED: dict[str, dict[str, Any]] = {
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
    "compression_config": {"compression_config": {"format": "int-quantized"}},
    "quant_method": {"quantization_config": FP8 | {"quant_method": "fbgemm_fp8"}},
    "weight_block_size": {"quantization_config": FP8 | {"weight_block_size": [64, 128]}},
    "fmt": {"quantization_config": FP8 | {"fmt": "e5m2"}},
    "activation_scheme": {"quantization_config": FP8 | {"activation_scheme": "static"}},
    "scale_fmt": {"quantization_config": FP8 | {"scale_fmt": "ue8m0"}},
    "kv_cache_scheme": {"quantization_config": FP8 | {"kv_cache_scheme": {"num_bits": 8}}},
    "plain names": {"quantization_config": FP8 | {"ignored_layers": ["re:.*gate$"]}},
    "partial_rotary_factor": {"partial_rotary_factor": 0.5},
    "is 0.25; Qwen3 rotates whole heads": {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}},
    "full_attention": {"rope_parameters": {"full_attention": {"rope_theta": 5e6}}},
    "attention_factor": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": "auto"}},
    "factor is inf": {"rope_scaling": {"rope_type": "linear", "factor": float("inf")}},
    "mscale": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7, "mscale_all_dim": 1.0}},
    "truncate": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
    "tie_word_embeddings": {"tie_word_embeddings": "false"},
    "attention_bias": {"attention_bias": 1},
    "norm_topk_prob": {"norm_topk_prob": "true"},
    "num_nextn_predict_layers": {"num_nextn_predict_layers": -1},
    "mlp_only_layers": {"mlp_only_layers": 3},
    "num_local_experts is 64": {"num_local_experts": 64},
    "dtype: unknown number format '16'": {"torch_dtype": 16},
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
    path.write_bytes(b"\xff{}")
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


@pytest.mark.parametrize("spelling", ["modules_to_not_convert", "ignored_layers"])
def test_fp8_blocks_follow_the_config(spelling: str) -> None:
    """The lists that FP8 checkpoints carry: whole names, a module that holds others, the end of a name."""
    listed = ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.input_layernorm", "model.layers.1", "k_proj"]
    few = {"num_hidden_layers": 12, "num_experts": 8}
    tensors = checkpoint_tensors(ModelConfig.from_dict(changed(quantization_config=FP8 | {spelling: listed}, **few)))
    layer = "model.layers.0"
    assert tensors[f"{layer}.mlp.experts.5.down_proj.weight_scale_inv"].shape == (2048 // 128, 768 // 128)
    assert tensors[f"{layer}.mlp.experts.5.gate_proj.weight"].format is FLOAT8_E4M3
    quantized = {name.removesuffix(".weight_scale_inv") for name in tensors if name.endswith(".weight_scale_inv")}
    assert quantized.isdisjoint({f"{layer}.mlp.gate", f"{layer}.self_attn.k_proj", "lm_head"})
    assert not any(name.startswith("model.layers.1.") for name in quantized)
    assert {f"{layer}.self_attn.q_proj", "model.layers.11.self_attn.q_proj"} <= quantized


def test_router_head_and_norms_are_never_fp8() -> None:
    tensors = checkpoint_tensors(ModelConfig.from_dict(changed(quantization_config=FP8, num_hidden_layers=1)))
    plain = {name for name, spec in tensors.items() if spec.format is BFLOAT16}
    ends = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    layer = {"self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm", "mlp.gate"}
    assert plain == ends | {f"model.layers.0.{name}.weight" for name in layer}

"""Weights: rounding to the config's format, FP8 blocks, stacked experts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference.kernels.quantize import dequantize_fp8
from reference.model.qwen3 import Positions, forward, logits
from reference.model.rope_table import rope_table
from reference.model.weights import load_weights
from tests.reference.model.models import VOCAB_SIZE, random_checkpoint

FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
# Sizes that the blocks of 128 do not divide, as 768 over four ranks would give.
FP8_SHAPE: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 160,
    "moe_intermediate_size": 136,
    "quantization_config": FP8,
}


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_fp8_weights_serve_what_they_stand_for(model_type: str) -> None:
    """An FP8 model gives the logits of its dequantized self, but for the rounding of activations to e4m3."""
    config, tensors = random_checkpoint(model_type, **FP8_SHAPE)
    plain_config, _ = random_checkpoint(model_type, **(FP8_SHAPE | {"quantization_config": None}))
    plain = {
        name: dequantize_fp8(tensor, tensors[f"{name}_scale_inv"]) if f"{name}_scale_inv" in tensors else tensor
        for name, tensor in tensors.items()
        if not name.endswith("_scale_inv")
    }
    tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, 20).astype(np.int32)
    positions = Positions(np.arange(20, dtype=np.int32), *rope_table(config.rope, config.head_dim, 20))

    def run(config: Any, tensors: Any) -> np.ndarray:
        weights = load_weights(config, tensors)
        return logits(weights, config, forward(weights, config, tokens, positions))

    quantized, exact = run(config, tensors), run(plain_config, plain)

    def typical_error(rows: np.ndarray) -> float:
        # The median row: where a router's near tie falls the other way, a token meets other experts.
        return float(np.median(np.sqrt(((rows - exact) ** 2).mean(-1) / (exact**2).mean(-1))))

    relative = typical_error(quantized)
    assert 1e-4 < relative < 0.15
    broken = tensors | {
        name: np.ones_like(tensor) / 512 for name, tensor in tensors.items() if name.endswith("_scale_inv")
    }
    assert typical_error(run(config, broken)) > 3 * relative, "the factors make no difference"


def test_fp8_where_the_config_has_none_is_refused_and_the_reverse() -> None:
    config, tensors = random_checkpoint("qwen3")
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(ValueError, match=name):
        load_weights(config, tensors | {name: tensors[name].astype(ml_dtypes.float8_e4m3fn)})
    config, tensors = random_checkpoint("qwen3", **FP8_SHAPE)
    with pytest.raises(ValueError, match=name):
        load_weights(config, tensors | {name: tensors[name].astype(np.float32)})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.float8_e5m2])
def test_codes_of_another_quantization_are_refused(dtype: Any) -> None:
    config, tensors = random_checkpoint("qwen3")
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(ValueError, match=name):
        load_weights(config, tensors | {name: tensors[name].astype(dtype)})


def test_one_expert_apart_from_its_fellows_is_refused() -> None:
    """Stacked with e4m3 ones, a bfloat16 expert would be rounded to e4m3 and then scaled by a factor it has not."""
    expert = "model.layers.0.mlp.experts.3.up_proj"
    shape = FP8_SHAPE | {"quantization_config": FP8 | {"modules_to_not_convert": [expert]}}
    with pytest.raises(ValueError, match=f"{expert}.weight"):
        load_weights(*random_checkpoint("qwen3_moe", **shape))


def test_weights_are_rounded_to_the_dtype_of_the_config() -> None:
    config, _ = random_checkpoint("qwen3", dtype="bfloat16")
    _, tensors = random_checkpoint("qwen3", dtype="float32")
    weights = load_weights(config, tensors)
    assert weights.embedding.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(weights.embedding, tensors["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16))


def test_experts_are_stacked_in_order_and_ends_may_be_tied() -> None:
    config, tensors = random_checkpoint("qwen3_moe")
    weights = load_weights(config, tensors)
    for expert in range(config.num_experts):
        name = f"model.layers.2.mlp.experts.{expert}.down_proj.weight"
        np.testing.assert_array_equal(weights.layers[2].mlp.down_proj.weight[expert], tensors[name])
    assert weights.lm_head is not None
    assert load_weights(*random_checkpoint("qwen3")).lm_head is None

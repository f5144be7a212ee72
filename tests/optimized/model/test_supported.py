"""What the panel refuses is what its kernels refuse, and it is refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.checkpoint import shape_file, shape_names
from engine.checkpoint.checkpoint import read_config
from engine.checkpoint.resolve import BUILTIN_DIRECTORY
from optimized.kernels.moe_routing import MAX_EXPERTS as MOST_DISPATCHED
from optimized.kernels.prefill_attention import HEAD_DIMS
from optimized.kernels.router_top_k import MAX_EXPERTS as MOST_ROUTED
from optimized.kernels.row_cluster import longest_row
from optimized.model import supported
from optimized.model.build import OutOfMemory, kv_blocks, step_bytes, weight_bytes
from optimized.model.supported import UnsupportedModel, check_supported
from reference.formats import FLOAT32
from reference.model.config import ModelConfig


def shape(name: str = "qwen3-30b-a3b", **changes: Any) -> ModelConfig:
    file = shape_file(name)
    assert file is not None
    return replace(read_config(file, None), **changes)


def test_the_limits_are_those_of_the_kernels() -> None:
    assert supported.HEAD_DIMS == HEAD_DIMS
    assert min(MOST_ROUTED, MOST_DISPATCHED) == supported.MOST_EXPERTS
    assert longest_row() == supported.MOST_TOKEN_IDS


@pytest.mark.parametrize("name", shape_names())
def test_every_shape_is_computed_but_those_in_fp8(name: str) -> None:
    config = shape(name)
    if config.fp8_blocks:
        with pytest.raises(UnsupportedModel, match="FP8"):
            check_supported(config)
    else:
        check_supported(config)


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_the_built_in_models_are_computed(name: str) -> None:
    config = read_config(BUILTIN_DIRECTORY / name / "config.json", None)
    check_supported(config)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dtype": FLOAT32}, "bfloat16 and float16, this model is float32"),
        ({"head_dim": 32}, "heads of 64, 128, 256 channels, this model's have 32"),
        ({"vocab_size": 400_000}, "up to 389120 token ids, this model has 400000"),
        ({"num_experts": 1024}, "up to 32 of 512 experts, this model to 8 of 1024"),
        ({"moe_intermediate_size": 764}, "multiples of 8; moe_intermediate_size is 764"),
    ],
)
def test_what_no_kernel_computes_is_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UnsupportedModel, match=told):
        check_supported(shape(**changes))


def test_memory_follows_the_sizes_of_steps() -> None:
    config, free = shape(), 140 * 10**9
    usual, large = step_bytes(config, 8192, 256), step_bytes(config, 65536, 1024)
    assert 2e9 < usual < 5e9 and large > 4 * usual
    blocks = kv_blocks(config, free, usual, 4096, None, 128)
    assert blocks > kv_blocks(config, free, large, 4096, None, 128) > 0
    of_block = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2 * 128
    assert weight_bytes(config) + usual + blocks * of_block < free
    assert kv_blocks(config, free, usual, 4096, 1000, 128) == 8
    with pytest.raises(OutOfMemory, match=rf"--kv-cache-tokens {128 * blocks} would fit: {128 * blocks // 4096} seq"):
        kv_blocks(config, free, usual, 4096, 128 * blocks + 1, 128)
    with pytest.raises(OutOfMemory, match="the model does not fit: weights take 61"):
        kv_blocks(config, 60 * 10**9, usual, 4096, None, 128)

"""Random weights are the same for the same seed, name and shape, whatever else happens, and keep activations O(1)."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.checkpoint import CheckpointError, dummy, dummy_checkpoint, shape_names
from engine.checkpoint.resolve import BUILTIN_DIRECTORY
from reference.formats import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, Array, Format
from reference.model.tensors import checkpoint_tensors
from tests.engine.checkpoint.configs import DENSE, FP8, MOE

Q_PROJ_SHA256 = "c669aeadbfb64ebfacca611312337d8333659aa8b157a29f832e9b047275a4db"
EVERYTHING = MOE | {"model_type": "qwen3_moe", "attention_bias": True, "dtype": "float32", "hidden_size": 256}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_config(tmp_path, EVERYTHING)


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_every_tensor_has_its_shape_and_format_and_is_finite(directory: Path) -> None:
    checkpoint = dummy_checkpoint(directory)
    specs = checkpoint_tensors(checkpoint.config)
    assert list(checkpoint.tensors) == list(specs) and len(checkpoint.tensors) == len(specs)
    for name, spec in specs.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.shape, tensor.dtype) == (spec.shape, spec.format.dtype)
        assert np.isfinite(tensor).all() and np.unique(tensor).size > min(tensor.size, 64) // 2


def test_a_tensor_depends_on_seed_and_name_alone(directory: Path) -> None:
    once = {name: tensor.tobytes() for name, tensor in dummy_checkpoint(directory, 3).tensors.items()}
    again = dummy_checkpoint(directory, 3).tensors
    names = list(again) * 2
    random.Random(0).shuffle(names)
    assert all(again[name].tobytes() == once[name] for name in names)
    other = dummy_checkpoint(directory, 4).tensors
    assert all(other[name].tobytes() != once[name] for name in names)
    assert len(set(once.values())) == len(once)  # tensors of one shape differ too


def test_the_weights_of_a_seed_never_change() -> None:
    tensor = dummy_checkpoint("qwen3-0.6b", 2**64 - 1).tensors["model.layers.0.self_attn.q_proj.weight"]
    assert hashlib.sha256(tensor.tobytes()).hexdigest() == Q_PROJ_SHA256


def test_large_matrices_share_a_stream_and_repeat_no_row(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setattr(dummy, "_LARGE", 1 << 10)
    monkeypatch.setattr(dummy, "_STREAM", (1 << 12) + 1)
    tensors = dummy_checkpoint(directory).tensors
    stream = np.resize(standardised(tensors["model.embed_tokens.weight"], 256), 1 << 14).astype(np.float32)
    rows = {row.tobytes() for row in tensors["model.embed_tokens.weight"]}
    assert len(rows) == len(tensors["model.embed_tokens.weight"]) > 20
    q_proj = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert q_proj.size >= 1 << 10 and set(standardised(q_proj, 256).astype(np.float32).ravel()) <= set(stream)
    with pytest.raises(ValueError, match="read-only"):
        q_proj[0, 0] = 1
    assert all(
        tensor.tobytes() == tensors[name].tobytes() for name, tensor in dummy_checkpoint(directory).tensors.items()
    )


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(directory: Path, seed: int) -> None:
    with pytest.raises(CheckpointError, match="seed"):
        dummy_checkpoint(directory, seed)


def standardised(tensor: Array, in_features: int) -> Array:
    return tensor.astype(np.float64) * np.sqrt(in_features)


@pytest.mark.parametrize("format_", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda f: f.name)
def test_products_of_unit_activations_are_of_unit_size(directory: Path, format_: Format) -> None:
    tensors = dummy_checkpoint(directory, dtype=format_).tensors
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.size > 4000:
            scaled = standardised(tensor, tensor.shape[1])
            assert abs(scaled.std() - 1) < 0.05 and abs(scaled.mean()) < 0.1, name
        if name.endswith("norm.weight"):
            assert 0.8 < tensor.astype(np.float64).min() < 1 < tensor.astype(np.float64).max() < 1.2, name


def test_fp8_weights_use_their_range_and_dequantize_to_unit_size(tmp_path: Path) -> None:
    sizes = {"hidden_size": 300, "num_attention_heads": 20}
    tensors = dummy_checkpoint(write_config(tmp_path, DENSE | FP8 | {"model_type": "qwen3"} | sizes)).tensors
    name = "model.layers.1.self_attn.q_proj.weight"
    q, scale = tensors[name], tensors[name + "_scale_inv"]
    assert q.dtype == FLOAT8_E4M3.dtype and scale.shape == (3, 3) and np.unique(scale).size == 9
    assert np.abs(q.astype(np.float32)).max() == FLOAT8_E4M3.max
    factors = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: q.shape[0], : q.shape[1]]
    assert abs(standardised(q.astype(np.float32) * factors, 300).std() - 1) < 0.1


@pytest.mark.parametrize("name", shape_names())
def test_every_shape_opens_at_once_with_the_built_in_tokenizer(name: str) -> None:
    checkpoint = dummy_checkpoint(name.upper())
    assert checkpoint.num_bytes > 1e9
    assert checkpoint.directory == BUILTIN_DIRECTORY / "dense" and checkpoint.generation.eos_token_ids
    assert checkpoint.tensors["model.norm.weight"].shape == (checkpoint.config.hidden_size,)


def test_a_directory_keeps_its_own_tokenizer(directory: Path) -> None:
    assert dummy_checkpoint(directory).directory == BUILTIN_DIRECTORY / "dense"
    (directory / "tokenizer.json").write_text("{}")
    (directory / "generation_config.json").write_text('{"eos_token_id": 5}')
    checkpoint = dummy_checkpoint(directory)
    assert checkpoint.directory == directory and checkpoint.generation.eos_token_ids == (5,)


def test_another_name_lists_the_shapes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no shape .* shapes are qwen3-0\.6b"):
        dummy_checkpoint(tmp_path)

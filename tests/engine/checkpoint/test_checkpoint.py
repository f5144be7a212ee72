"""A checkpoint opens exactly if it holds what its config calls for; every refusal names the file and the tensor."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine.checkpoint import CheckpointError, dummy_checkpoint, open_checkpoint, with_progress
from reference.formats import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, FORMATS, Array, Format
from reference.model.config import ConfigError, ModelConfig
from reference.model.tensors import checkpoint_tensors
from tests.engine.checkpoint.configs import DENSE, FP8, MOE
from tests.engine.checkpoint.safetensors_bytes import write

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


class Written:
    """A small checkpoint on disk, whose parts a test changes before it is opened."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.config = DENSE | {"model_type": "qwen3", "dtype": "float32", "tie_word_embeddings": False} | options
        (directory / "config.json").write_text(json.dumps(self.config))
        random = np.random.default_rng(0)
        self.tensors = {
            name: random.standard_normal(spec.shape).astype(spec.format.dtype)
            for name, spec in checkpoint_tensors(ModelConfig.from_dict(self.config)).items()
        }

    def single(self) -> Path:
        return write(self.directory / "model.safetensors", self.tensors)

    def sharded(self, listed: dict[str, str] | None = None) -> dict[str, str]:
        """Two shards, names alternating; `listed` is what the index says besides."""
        homes = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(self.tensors)}
        for shard in set(homes.values()):
            write(self.directory / shard, {n: t for n, t in self.tensors.items() if homes[n] == shard})
        index = {"metadata": {}, "weight_map": homes | (listed or {})}
        (self.directory / "model.safetensors.index.json").write_text(json.dumps(index))
        return homes

    def refusal(self) -> str:
        with pytest.raises(CheckpointError) as raised:
            open_checkpoint(self.directory)
        return str(raised.value)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def as_numpy(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("shard_size", ["10KB", "10MB"])
def test_opens_what_transformers_saves(tmp_path: Path, dtype: torch.dtype, tied: bool, shard_size: str) -> None:
    model: Any = Qwen3ForCausalLM(Qwen3Config(**DENSE, tie_word_embeddings=tied))
    model.to(dtype).save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "10KB")
    checkpoint = open_checkpoint(tmp_path)
    state = {name: t for name, t in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    assert set(checkpoint.tensors) == set(state) and len(checkpoint.tensors) == len(state)
    for name, tensor in state.items():
        taken = checkpoint.tensors[name]
        assert taken.dtype == checkpoint.config.dtype.dtype and taken.tobytes() == as_numpy(tensor).tobytes(), name


def test_opens_a_mixture_of_experts(tmp_path: Path) -> None:
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**MOE)).save_pretrained(tmp_path, max_shard_size="10KB")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.num_experts == 4 and checkpoint.config.sparse_layers == (False, True)
    assert checkpoint.tensors["model.layers.1.mlp.experts.3.down_proj.weight"].shape == (32, 24)


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_tensors_come_in_the_order_of_their_use_as_written(written: Written, layout: str) -> None:
    getattr(written, layout)()
    checkpoint = open_checkpoint(written.directory)
    assert list(checkpoint.tensors) == list(written.tensors)
    assert all(np.array_equal(checkpoint.tensors[name], tensor) for name, tensor in written.tensors.items())
    assert checkpoint.num_bytes == sum(tensor.nbytes for tensor in written.tensors.values())
    assert checkpoint.directory == written.directory


@pytest.mark.parametrize("wanted", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda f: f.name)
@pytest.mark.parametrize("stored", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda f: f.name)
def test_another_float_format_is_rounded_once(written: Written, stored: Format, wanted: Format) -> None:
    written.tensors = {name: tensor.astype(stored.dtype) for name, tensor in written.tensors.items()}
    written.single()
    tensors = open_checkpoint(written.directory, dtype=wanted).tensors
    for name, tensor in written.tensors.items():
        assert tensors[name].dtype == wanted.dtype and np.array_equal(tensors[name], tensor.astype(wanted.dtype))


def test_a_value_beyond_float16_is_refused_not_made_infinite(written: Written) -> None:
    written.tensors[Q_PROJ][3, 4] = 1e6
    file = written.single()
    tensors = open_checkpoint(written.directory, dtype=FLOAT16).tensors
    assert np.isfinite(tensors["lm_head.weight"]).all()
    with pytest.raises(CheckpointError, match="beyond float16's 65504") as raised:
        tensors[Q_PROJ]
    assert str(file) in str(raised.value) and Q_PROJ in str(raised.value)


def test_dtype_must_be_one_of_activations(written: Written) -> None:
    written.single()
    with pytest.raises(ConfigError, match="float8_e4m3fn"):
        open_checkpoint(written.directory, dtype=FLOAT8_E4M3)


def test_scales_of_an_fp8_checkpoint_are_widened_and_its_weights_untouched(tmp_path: Path) -> None:
    written = Written(tmp_path, **FP8)
    scale = Q_PROJ + "_scale_inv"
    written.tensors[scale] = written.tensors[scale].astype(ml_dtypes.bfloat16)
    written.single()
    tensors = open_checkpoint(tmp_path).tensors
    assert tensors[Q_PROJ].dtype == FLOAT8_E4M3.dtype and tensors[Q_PROJ].tobytes() == written.tensors[Q_PROJ].tobytes()
    assert tensors[scale].dtype == np.float32 and np.array_equal(tensors[scale], written.tensors[scale])


@pytest.mark.parametrize("stored", [f for f in FORMATS if f not in (FLOAT32, FLOAT16, BFLOAT16)], ids=lambda f: f.name)
def test_a_weight_in_a_format_the_config_does_not_name_is_refused(written: Written, stored: Format) -> None:
    written.tensors[Q_PROJ] = written.tensors[Q_PROJ].astype(stored.dtype)
    message = f"{written.single()}: tensor {Q_PROJ!r} is stored as {stored.name}; config.json calls for float32"
    assert message in written.refusal()


def test_an_unquantized_weight_of_an_fp8_checkpoint_is_refused(tmp_path: Path) -> None:
    written = Written(tmp_path, **FP8)
    written.tensors[Q_PROJ] = written.tensors[Q_PROJ].astype(np.float32)
    message = f"{written.single()}: tensor {Q_PROJ!r} is stored as float32; config.json calls for float8_e4m3fn"
    assert message in written.refusal()


def test_a_wrong_shape_names_file_tensor_and_both_shapes(written: Written) -> None:
    written.tensors[Q_PROJ] = written.tensors[Q_PROJ].T
    file = written.directory / written.sharded()[Q_PROJ]
    message = f"{file}: tensor {Q_PROJ!r} has shape [32, 64]; config.json calls for [64, 32]"
    assert message in written.refusal()


def test_a_missing_tensor_is_named_with_where_it_should_be(written: Written) -> None:
    del written.tensors[Q_PROJ]
    written.single()
    assert f"tensor {Q_PROJ!r} is missing: config.json calls for it, but model.safetensors does" in written.refusal()
    (written.directory / "model.safetensors").unlink()
    written.sharded()
    assert f"tensor {Q_PROJ!r} is missing" in written.refusal() and "does not list it" in written.refusal()
    written.sharded({Q_PROJ: "model-00002-of-00002.safetensors"})
    assert "puts it in model-00002-of-00002.safetensors, which does not hold it" in written.refusal()
    del written.tensors["lm_head.weight"]
    written.sharded()
    assert "(1 more are missing)" in written.refusal()


def test_a_missing_or_foreign_shard_is_named(written: Written) -> None:
    written.sharded({Q_PROJ: "model-00003-of-00003.safetensors"})
    assert "index.json names the shard model-00003-of-00003.safetensors, which is missing" in written.refusal()
    written.sharded({Q_PROJ: "../other.safetensors"})
    assert "'../other.safetensors' is not the name of a file beside it" in written.refusal()


def test_a_cut_shard_is_named(written: Written) -> None:
    homes = written.sharded()
    shard = written.directory / homes[Q_PROJ]
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    assert f"{shard} is cut off" in written.refusal()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"x": 3}}'])
def test_an_index_that_is_none_is_named(written: Written, content: str) -> None:
    (written.directory / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in written.refusal()


def test_a_directory_without_weights_or_config_says_so(written: Written) -> None:
    assert "holds no weights: neither model.safetensors nor model.safetensors.index.json" in written.refusal()
    (written.directory / "config.json").unlink()
    assert f"{written.directory} is no checkpoint directory: it has no config.json" in written.refusal()


def warnings_of(written: Written, caplog: pytest.LogCaptureFixture) -> list[str]:
    written.single()
    with caplog.at_level(logging.WARNING):
        open_checkpoint(written.directory)
    return [record.getMessage() for record in caplog.records]


def test_tensors_that_say_nothing_new_are_left_out_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = Written(tmp_path, tie_word_embeddings=True)
    written.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    written.tensors["lm_head.weight"] = written.tensors["model.embed_tokens.weight"]
    assert warnings_of(written, caplog) == []


def test_strange_tensors_are_one_line_with_their_number(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    for index in range(5):
        written.tensors[f"strange.{index}"] = np.zeros(1, np.int64)
    (line,) = warnings_of(written, caplog)
    assert "5 tensors are no part of a qwen3 model and are left out: strange.0, strange.1, strange.2, ..." in line


@pytest.mark.parametrize("take", [list, sorted], ids=["in order", "by name"])
def test_progress_counts_every_byte_once(written: Written, take: Callable[..., list[str]]) -> None:
    written.single()
    checkpoint = open_checkpoint(written.directory)
    steps: list[int] = []
    tensors = with_progress(checkpoint.tensors, steps.append)
    assert list(tensors) == list(checkpoint.tensors) and len(tensors) == len(checkpoint.tensors) and steps == []
    for name in take(tensors) * 2:
        assert tensors[name].nbytes in steps
    assert sum(steps) == checkpoint.num_bytes and len(steps) == len(tensors)


def test_a_checkpoint_of_many_gigabytes_opens_unread(tmp_path: Path) -> None:
    """A sparse file of the shape of the 8B model: reading it would take seconds, and more memory than CI has."""
    from tests.engine.checkpoint.safetensors_bytes import CODES, file_bytes

    config = dummy_checkpoint("qwen3-8b").config
    header, position = {}, 0
    for name, spec in checkpoint_tensors(config).items():
        end = position + int(np.prod(spec.shape)) * 2
        header[name] = {
            "dtype": CODES[spec.format.dtype],
            "shape": list(spec.shape),
            "data_offsets": [position, end],
        }
        position = end
    content = file_bytes(header)
    with open(tmp_path / "model.safetensors", "wb") as sparse:
        sparse.write(content)
        sparse.truncate(len(content) + position)
    shape = Path(__file__).parents[3] / "reference" / "model" / "shapes" / "qwen3-8b.json"
    (tmp_path / "config.json").write_text(shape.read_text())
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.num_bytes == position > 16e9
    assert not checkpoint.tensors["lm_head.weight"][-1].any()

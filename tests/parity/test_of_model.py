"""The configurations that models call twins with: they can be made, and their bytes are those of the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.checkpoint import shape_file
from engine.checkpoint.checkpoint import read_config
from engine.checkpoint.resolve import shape_names
from optimized.compile.arch import SM_90A
from optimized.device import CompileOnly, Outline
from parity.cases import names, twin_named
from parity.executors import compile_only
from parity.harness import seed_of
from parity.shape import MOST_DECODES, Shape
from parity.twin import Call, Config, Twin, as_tuple
from reference.formats import Array

DECODE, PREFILL = 1, 4096
TWINS = pytest.mark.parametrize("name", [name for name in names() if twin_named(name).of_model is not None])


@cache
def shapes() -> list[Shape]:
    found = []
    for name in shape_names():
        file = shape_file(name)
        assert file is not None
        found += [Shape.of(name, read_config(file, None), ranks) for ranks in (1, 4)]
    return found


def config_of(name: str, shape: Shape, tokens: int) -> Config | None:
    of_model = twin_named(name).of_model
    assert of_model is not None
    return of_model(shape, tokens)


def call_of(name: str, config: Config) -> Call:
    return twin_named(name).inputs(config, np.random.default_rng(seed_of(config)))


def results(twin: Twin, call: Call) -> list[Outline]:
    """Shapes of the outputs that have memory of their own, as our host code makes them."""
    launched: list[Any] = []
    device = CompileOnly(SM_90A, lambda kernel, _: launched.append(kernel))
    outlines = [
        Outline(array.shape, str(array.dtype), device, tuple(stride // array.itemsize for stride in array.strides))
        for array in call.arrays.values()
    ]
    outputs = as_tuple(compile_only.load_function(twin.optimized)(*outlines, **call.constants, **call.launch))
    assert launched
    return [one for output, one in zip(twin.outputs, outputs, strict=True) if output.in_place is None]


def bytes_of(name: str, call: Call) -> int:
    """A simple count: inputs are read once, outputs are written once; of tables, caches and rows what is used."""
    twin, arrays = twin_named(name), call.arrays
    overwritten = {output.in_place for output in twin.outputs}

    def row(array: Array) -> int:
        return array[0].size * array.itemsize

    count = 0
    for key, array in arrays.items():
        size = array.size * array.itemsize
        if key == "table":
            count += len(arrays["token_ids"]) * row(array)
        elif key in ("cos", "sin"):
            count += len(np.unique(arrays["positions"])) * row(array)
        elif key == "rows":
            count += arrays["row_of"].size * row(array)
        elif key in ("k_cache", "v_cache") and name == "kv_block_copy":
            count += 2 * len(arrays["pairs"]) * row(array)
        elif key in ("k_cache", "v_cache") and name == "paged_attention":
            count += int(arrays["seq_lens"].sum()) * row(array) // array.shape[2]
        elif key in ("k_cache", "v_cache"):
            count += len(arrays["slot_mapping"]) * row(array) // array.shape[2]
        elif key == "weight" and array.ndim == 3:
            count += experts_hit(arrays) * row(array)
        elif key == "out":  # written where there are rows, and not read
            count += size
        else:
            count += size + (size if key in overwritten else 0)
    for one in results(twin, call):
        num_rows = arrays["expert_ids"].size if name == "moe_dispatch" and len(one.shape) == 2 else one.shape[0]
        if name == "moe_dispatch" and one.dtype == "int32":
            num_rows = one.shape[0]
        count += num_rows * int(np.prod(one.shape[1:])) * (2 if one.dtype == "bfloat16" else 4)
    return count


def experts_hit(arrays: Mapping[str, Array]) -> int:
    if "expert_ids" in arrays:
        return len(np.unique(arrays["expert_ids"]))
    return int(np.count_nonzero(np.diff(arrays["expert_offsets"])))


def test_sizes_of_a_rank() -> None:
    [whole, quarter] = [one for one in shapes() if one.name.startswith("qwen3-30b-a3b")]
    assert (whole.heads, whole.kv_heads, whole.intermediate, whole.experts, whole.top_k) == (32, 4, 768, 128, 8)
    assert (quarter.heads, quarter.kv_heads, quarter.intermediate, quarter.hidden) == (8, 1, 192, whole.hidden)
    assert quarter.name == "qwen3-30b-a3b TP4" and whole.token_stride == 40 * 128


@TWINS
def test_every_shape_has_a_configuration_of_known_parts(name: str) -> None:
    corner = next(iter(twin_named(name).corners()))
    for shape in shapes():
        for tokens in (DECODE, MOST_DECODES, PREFILL):
            config = config_of(name, shape, tokens)
            if config is None:
                assert name.startswith(("moe_", "grouped_", "routed_")) or name in (
                    "router_top_k",
                    "kv_block_copy",
                    "paged_attention",
                )
            else:
                assert config.keys() == corner.keys() - {"repeated"}
                assert config.get("tokens", tokens) == tokens


@TWINS
def test_bytes_of_a_decode_step_are_those_of_the_arrays(name: str) -> None:
    bytes_moved = twin_named(name).bytes_moved
    assert bytes_moved is not None
    for shape in shapes():
        if name == "embedding" and shape.hidden > 2048:
            continue
        config = config_of(name, shape, DECODE)
        if config is not None:
            assert bytes_moved(config) == bytes_of(name, call_of(name, config)), shape


@TWINS
def test_bytes_of_a_prompt_are_those_of_the_arrays(name: str) -> None:
    bytes_moved = twin_named(name).bytes_moved
    assert bytes_moved is not None
    config = config_of(name, shapes_by_name()["qwen3-30b-a3b TP4"], PREFILL)
    if config is not None:
        assert bytes_moved(config) == bytes_of(name, call_of(name, config))


def shapes_by_name() -> dict[str, Shape]:
    return {shape.name: shape for shape in shapes()}


@pytest.mark.parametrize("name", ["rms_norm", "qk_norm_rope_kv_write", "kv_write", "moe_dispatch"])
@pytest.mark.parametrize("tokens", [DECODE, PREFILL])
def test_the_compile_executor_takes_them(name: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host code alone: nothing is compiled."""
    kernels: list[Any] = []
    library = SimpleNamespace(artifact=lambda kernel, _: kernels.append(kernel) or SimpleNamespace(resources=[]))
    monkeypatch.setattr(compile_only, "check_promises", lambda *_: None)
    config = config_of(name, shapes_by_name()["qwen3-30b-a3b TP4"], tokens)
    assert config is not None
    executor = compile_only.CompileExecutor(SM_90A, library)  # type: ignore[arg-type]
    executor.run(twin_named(name), call_of(name, config), ())
    assert kernels


@pytest.mark.parametrize("name", ["kv_write", "qk_norm_rope_kv_write"])
def test_tokens_of_a_decode_step_open_no_block_and_share_none(name: str) -> None:
    config = config_of(name, shapes_by_name()["qwen3-8b TP4"], 300)
    assert config is not None
    arrays = call_of(name, config).arrays
    blocks, offsets = np.divmod(arrays["slot_mapping"], 128)
    assert len(set(blocks)) == 300
    assert offsets.min() >= 32 and offsets.max() <= 96
    if "positions" in arrays:
        assert len(set(arrays["positions"])) == 300 and np.array_equal(arrays["positions"] % 128, offsets)


@pytest.mark.parametrize("name", ["kv_write", "qk_norm_rope_kv_write"])
def test_tokens_of_a_prompt_fill_blocks_in_order(name: str) -> None:
    config = config_of(name, shapes_by_name()["qwen3-8b TP4"], 700)
    assert config is not None
    arrays = call_of(name, config).arrays
    blocks, offsets = np.divmod(arrays["slot_mapping"], 128)
    assert np.array_equal(offsets, np.arange(700) % 128)
    assert len(set(blocks)) == 6 and (blocks.min() >= 0)
    if "positions" in arrays:
        assert np.array_equal(arrays["positions"], np.arange(700))

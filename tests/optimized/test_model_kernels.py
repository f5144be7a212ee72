"""`diptych compile` builds every kernel that serving launches, and no two of the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.checkpoint import shape_file
from engine.checkpoint.checkpoint import read_config
from optimized.compile.arch import SM_90A
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly
from optimized.kernels.few_rows import FewRows
from optimized.model.kernels import kernels_of, launch_step, outlined
from optimized.model.supported import UnsupportedModel
from reference.formats import format_named
from reference.model.config import ModelConfig

DENSE, EXPERTS = "qwen3-8b", "qwen3-30b-a3b"
OF_BOTH = {"Linear", "VocabularyHeadKernel", "PagedAttention", "QkNormRopeKvWrite", "Embedding", "KnownTokens"}
OF_BOTH |= {"RmsNorm", "SampleParts", "SampleChoice", "SampleMasses", "SampleSearch", "TokenLogProbs", "AdjustLogits"}
OF_EXPERTS = {
    *("RouterTopK", "RoutedGatedLinear", "RoutedLinear", "RoutedLinearAlone", "RoutedSum"),
    *("GroupedGatedLinear", "GroupedLinear", "MoeCombine", "MoeDispatchTogether", "AddRmsNorm"),
}


def config_of(name: str) -> ModelConfig:
    file = shape_file(name)
    assert file is not None
    return read_config(file, None)


def launched(config: ModelConfig, num_rows: int) -> list[Any]:
    """Of a step of decode rows."""
    found: list[Kernel] = []
    model = outlined(config, CompileOnly(SM_90A, lambda kernel, _: found.append(kernel)))
    launch_step(model, num_rows, 1, num_rows, all_sample=True)
    return found


def names(kernels: list[Any]) -> set[str]:
    return {type(kernel).__name__ for kernel in kernels}


@pytest.mark.parametrize(("model", "own"), [(DENSE, {"GatedLinear"}), (EXPERTS, OF_EXPERTS)])
def test_a_model_has_its_kernels(model: str, own: set[str]) -> None:
    found = kernels_of(config_of(model), SM_90A, max_tokens=512)
    assert OF_BOTH | own <= names(found)
    assert not ({"GatedLinear"} | OF_EXPERTS) - own & names(found)
    assert len(set(found)) == len(found)
    assert all(kernel.pdl for kernel in found if isinstance(kernel, FewRows))


def test_each_weight_has_a_kernel_for_each_number_of_row_tiles() -> None:
    config = config_of(DENSE)
    shapes = {(6144, 4096), (4096, 4096), (12288, 4096), (4096, 12288), (151936, 4096)}
    found = [one for rows in (1, 16, 32) for one in launched(config, rows) if isinstance(one, FewRows)]
    assert {(one.out_features, one.in_features) for one in found} == shapes
    for shape in shapes:
        row_tiles = {one.row_tiles for one in found if (one.out_features, one.in_features) == shape}
        assert row_tiles == {1, 2, 4}


def test_more_pairs_than_are_routed_are_dispatched() -> None:
    config = config_of(EXPERTS)
    assert "RoutedLinearAlone" in names(launched(config, 1))
    assert "RoutedLinear" in names(launched(config, 64)) and "GroupedLinear" not in names(launched(config, 64))
    assert "GroupedLinear" in names(launched(config, 65)) and "RoutedLinear" not in names(launched(config, 65))
    assert "GroupedLinear" in names(launched(config, 512)) and "GroupedLinear" not in names(launched(config, 513))


def test_biases_are_those_of_the_model() -> None:
    config = config_of(DENSE)
    for has_bias, known in ((False, [""] * 3), (True, ["bfloat16", "bfloat16", ""])):
        found = launched(replace(config, attention_bias=has_bias), 1)
        assert [one.bias_dtype for one in found if hasattr(one, "bias_dtype")] == known


@pytest.mark.parametrize("other", [{"fp8_blocks": True}, {"dtype": format_named("float32")}])
def test_a_model_of_other_formats_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"the optimized panel .* the reference panel computes"):
        kernels_of(replace(config_of(DENSE), **other), SM_90A, max_tokens=8)

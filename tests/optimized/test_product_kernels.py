"""`diptych compile` builds every product that a decode step launches, and no two of the same."""

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
from optimized.model.kernels import kernels_of
from optimized.model.product_kernels import launch_products
from reference.formats import format_named
from reference.model.config import ModelConfig

DENSE, EXPERTS = "qwen3-8b", "qwen3-30b-a3b"
OF_BOTH = {"Linear", "VocabularyHeadKernel"}
OF_EXPERTS = {
    *("RoutedGatedLinear", "RoutedLinear", "RoutedLinearAlone", "RoutedSum"),
    *("GroupedGatedLinear", "GroupedLinear", "MoeCombine"),
}


def config_of(name: str) -> ModelConfig:
    file = shape_file(name)
    assert file is not None
    return read_config(file, None)


def launched(config: ModelConfig, num_tokens: int) -> list[Any]:
    found: list[Kernel] = []
    launch_products(config, CompileOnly(SM_90A, lambda kernel, _: found.append(kernel)), num_tokens)
    return found


def names(kernels: list[Any]) -> set[str]:
    return {type(kernel).__name__ for kernel in kernels}


@pytest.mark.parametrize(("model", "own"), [(DENSE, {"GatedLinear"}), (EXPERTS, OF_EXPERTS)])
def test_a_model_has_its_products(model: str, own: set[str]) -> None:
    found = kernels_of(config_of(model), SM_90A, max_tokens=128)
    assert OF_BOTH | own <= names(found)
    assert not ({"GatedLinear"} | OF_EXPERTS) - own & names(found)
    products = [kernel for kernel in found if isinstance(kernel, FewRows)]
    assert len(set(products)) == len(products) and all(kernel.pdl for kernel in products)


def test_each_weight_has_a_kernel_for_each_number_of_row_tiles() -> None:
    config = config_of(DENSE)
    shapes = {(6144, 4096), (4096, 4096), (12288, 4096), (4096, 12288), (151936, 4096)}
    found = [one for tokens in (1, 16, 17, 33, 300) for one in launched(config, tokens)]
    assert {(one.out_features, one.in_features) for one in found} == shapes
    for shape in shapes:
        row_tiles = {one.row_tiles for one in found if (one.out_features, one.in_features) == shape}
        assert row_tiles == {1, 2, 4, 8}


def test_more_pairs_than_are_routed_are_dispatched() -> None:
    config = config_of(EXPERTS)
    assert "RoutedLinearAlone" in names(launched(config, 1))
    assert "RoutedLinear" in names(launched(config, 64)) and "GroupedLinear" not in names(launched(config, 64))
    assert "GroupedLinear" in names(launched(config, 65)) and "RoutedLinear" not in names(launched(config, 65))
    assert "GroupedLinear" in names(launched(config, 1024)) and "GroupedLinear" not in names(launched(config, 1025))


def test_biases_are_those_of_the_model() -> None:
    config = config_of(DENSE)
    for has_bias, known in ((False, [""] * 3), (True, ["bfloat16", "bfloat16", ""])):
        found = launched(replace(config, attention_bias=has_bias), 1)
        assert [one.bias_dtype for one in found if hasattr(one, "bias_dtype")] == known


def test_weights_of_other_formats_have_none() -> None:
    config = config_of(DENSE)
    assert names(launched(replace(config, fp8_blocks=True), 1)) == {"VocabularyHeadKernel"}, "which is not quantized"
    assert launched(replace(config, dtype=format_named("float32")), 1) == []

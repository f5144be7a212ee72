"""The benchmark's products: each dense weight of a model, and what cuBLAS does with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.bench.kernel_peers import PEERS, Operands
from parity.bench.kernel_work import configs_of_model
from parity.cases import twin_named
from parity.executors.placement import place_all
from parity.harness import call_of
from parity.judge import in_dtype
from parity.shape import Shape
from tests.parity.planted import to_numpy, to_torch

MIXTURE = Shape("tiny", 64, 4, 2, 64, 96, 500, 4096, 8, 2)
DENSE = replace(MIXTURE, experts=0, top_k=0)
TWINS = ("linear", "gated_linear", "vocabulary_head")


def sizes(shape: Shape, tokens: int) -> dict[str, tuple[int, int]]:
    found = {name: one for twin in TWINS for name, one in configs_of_model(twin_named(twin), shape, tokens).items()}
    outputs = ("out_features", "intermediate", "vocab")
    return {name: (one["in_features"], next(one[key] for key in outputs if key in one)) for name, one in found.items()}


def test_each_dense_weight_of_a_model_is_measured() -> None:
    head = {"vocabulary_head logits": (64, 500), "vocabulary_head token": (64, 500)}
    attention = {"linear qkv": (64, 512), "linear o": (256, 64)}
    mlp = {"linear down": (96, 64), "gated_linear gate_up": (64, 96)}
    assert sizes(DENSE, 8) == attention | mlp | head
    assert sizes(MIXTURE, 8) == attention | head
    assert sizes(DENSE, 65) == {}


def test_bytes_are_those_of_the_arrays() -> None:
    for name in TWINS:
        twin = twin_named(name)
        assert twin.bytes_moved is not None
        for config in configs_of_model(twin, DENSE, 3).values():
            call = call_of(twin, config)
            arrays = [*call.arrays.values(), *in_dtype(twin, call)]
            assert twin.bytes_moved(config) == sum(one.nbytes for one in arrays)


@pytest.mark.parametrize("name", TWINS)
def test_cublas_does_what_the_reference_does(name: str) -> None:
    twin = twin_named(name)
    for config in configs_of_model(twin, DENSE, 5).values():
        call = call_of(twin, config)
        expected = in_dtype(twin, call)
        out = tuple(to_torch(np.empty_like(one)) for one in expected)
        actual = PEERS[name]["cublas"](Operands(place_all(call.arrays, torch.device("cpu")), call.constants, out))
        for one, result in zip(expected, actual if isinstance(actual, tuple) else (actual,), strict=True):
            assert tuple(result.shape) == one.shape
            np.testing.assert_allclose(to_numpy(result).astype(float), one.astype(float), rtol=0.03, atol=0.03)

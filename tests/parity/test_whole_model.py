"""Whole models against exact ones: a panel that is right passes, and one with a small fault does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.cli import main
from optimized.compile.arch import SM_90A
from optimized.compile.library import Library
from parity import whole_model
from parity.executors.simulate.machine import SimulatedMachine
from parity.whole_model import Compared, Errors, ModelParity, OptimizedModel, compare
from tests.optimized.model.both_panels import BLOCK_SIZE, SHAPE, VOCAB
from tests.reference.model.models import random_checkpoint

FAULTY = {
    "input_layernorm.weight": "layer 0",  # of the only layer
    "self_attn.k_norm.weight": "layer 0",
    "lm_head.weight": "log-probabilities",
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> SimulatedMachine:
    return SimulatedMachine(SM_90A, Library((tmp_path_factory.mktemp("kernels"),)))


@pytest.mark.parametrize("faulty", [None, *FAULTY])
def test_a_fault_of_a_few_percent_is_found(
    faulty: str | None, machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = random_checkpoint(
        "qwen3", "bfloat16", **SHAPE | {"num_hidden_layers": 1, "tie_word_embeddings": False}
    )

    def spoiled(config: Any, tensors: Mapping[str, np.ndarray], *rest: Any) -> OptimizedModel:
        changed = {
            name: (1.04 * array.astype(np.float32)).astype(array.dtype) if faulty and name.endswith(faulty) else array
            for name, array in tensors.items()
        }
        return OptimizedModel(config, changed, *rest)

    monkeypatch.setattr(whole_model, "OptimizedModel", spoiled)
    token_ids = np.random.default_rng(0).integers(0, VOCAB, 5).astype(np.int32)
    found = compare(config, tensors, machine, token_ids, BLOCK_SIZE)
    assert [one.what for one in found.compared] == ["layer 0", "log-probabilities"]
    failed = {one.what for one in found.compared if not one.ok}
    assert found.ok is (faulty is None)
    assert (FAULTY[faulty] in failed) if faulty else (not failed)


def test_one_token_that_took_another_expert_decides_nothing() -> None:
    reference = Errors.of(np.array([1.0, 1.1, 0.9]))
    ours = Errors.of(np.array([1.0, 400.0, 0.9]))
    assert whole_model._holds(ours, reference, 0.3) and ours.worst == 400
    assert not whole_model._holds(Errors.of(np.array([1.0, 2.0, 2.0])), reference, 0.3)
    one = Compared("layer 0", "ULP", ours, reference, ok=False)
    assert not ModelParity((one,), 1.0, 1.0, 1.0).ok


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "there is no model 'no-such-model'"),
        (["dense", "--layers", "99"], "--layers is 99; the model has"),
        (["dense", "--on", "device"], "finds none here"),
        (["dense", "--on", "simulate", "--arch", "sm_80"], "unknown architecture 'sm_80'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", "model", *arguments]) == 2
    told = capsys.readouterr()
    assert message in told.err and told.err.startswith("diptych: ") and told.err.count("\n") == 1

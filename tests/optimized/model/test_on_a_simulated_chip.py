"""Whole models on simulated chips: the very kernels, launched by the very host code, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimized.compile.arch import ARCHS
from optimized.compile.library import Library
from parity.executors.simulate.machine import SimulatedMachine
from tests.optimized.model.both_panels import BLOCK_SIZE, check_batch_for_batch, check_tokens_in_flight, runner_on
from tests.reference.model.batches import Fed, batch_of


@pytest.mark.parametrize(("model_type", "arch"), [("qwen3", "sm_90a"), ("qwen3_moe", "sm_100a")])
def test_it_gives_what_the_reference_gives(model_type: str, arch: str, tmp_path: Path) -> None:
    check_batch_for_batch(SimulatedMachine(ARCHS[arch], Library((tmp_path,))), model_type)


def test_tokens_are_taken_from_where_they_were_sampled(tmp_path: Path) -> None:
    check_tokens_in_flight(SimulatedMachine(ARCHS["sm_90a"], Library((tmp_path,))))


def test_a_row_that_sampled_nothing_cannot_be_named(tmp_path: Path) -> None:
    runner = runner_on(SimulatedMachine(ARCHS["sm_90a"], Library((tmp_path,))), "qwen3")
    with pytest.raises(ValueError, match=r"names tokens of rows \[0\], of which one sampled none before"):
        runner.submit(batch_of([(Fed([-1], [0]), 1)], BLOCK_SIZE))

"""Whole models on simulated chips: the very kernels, launched by the very host code, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimized.compile.arch import ARCHS
from optimized.compile.library import Library
from optimized.kernels.embedding import embedding
from parity.executors.simulate.machine import SimulatedMachine
from simulators.gpu.errors import SimulatorError
from tests.optimized.model.both_panels import BLOCK_SIZE, check_batch_for_batch, check_tokens_in_flight, runner_on
from tests.reference.model.batches import Fed, batch_of


@pytest.mark.parametrize(("model_type", "arch"), [("qwen3", "sm_90a"), ("qwen3_moe", "sm_100a")])
def test_it_gives_what_the_reference_gives(model_type: str, arch: str, tmp_path: Path) -> None:
    check_batch_for_batch(SimulatedMachine(ARCHS[arch], Library((tmp_path,))), model_type)


def test_tokens_are_taken_from_where_they_were_sampled(tmp_path: Path) -> None:
    check_tokens_in_flight(SimulatedMachine(ARCHS["sm_90a"], Library((tmp_path,))))


def test_a_replay_reads_what_lasts_alone(tmp_path: Path) -> None:
    """As a CUDA graph does: what was allocated before it was captured must be kept by somebody else."""
    machine = SimulatedMachine(ARCHS["sm_90a"], Library((tmp_path,)))

    def filled(values: np.ndarray) -> Any:
        tensor = machine.device.empty(values.shape, str(values.dtype))
        machine.fill(tensor, values)
        return tensor

    def captured() -> tuple[Callable[[], None], list[Any], Any]:
        ids, found = filled(np.array([2, 0], np.int32)), []

        def step() -> None:
            found[:] = [embedding(ids, table)]

        return machine.capture(step), found, ids

    table = filled(np.arange(24, dtype=np.float32).reshape(3, 8))
    replay, found, ids = captured()
    table.array[2] = 7  # a replay sees what memory holds now
    replay()
    assert (found[0].array[0] == 7).all() and (found[0].array[1] == np.arange(8)).all()
    del ids
    with pytest.raises(SimulatorError, match="are not within an allocation"):
        replay()


def test_a_row_that_sampled_nothing_cannot_be_named(tmp_path: Path) -> None:
    runner = runner_on(SimulatedMachine(ARCHS["sm_90a"], Library((tmp_path,))), "qwen3")
    with pytest.raises(ValueError, match=r"names tokens of rows \[0\], of which one sampled none before"):
        runner.submit(batch_of([(Fed([-1], [0]), 1)], BLOCK_SIZE))

"""Whole models on the GPU at hand."""

from __future__ import annotations

import numpy as np
import pytest

from optimized.model.gpu_machine import GpuMachine
from optimized.model.runner import DeviceRunner
from reference.serving.runner import Ticket
from tests.optimized.model.both_panels import (
    BLOCK_SIZE,
    LIMITS,
    SHAPE,
    VOCAB,
    check_batch_for_batch,
    check_tokens_in_flight,
)
from tests.reference.model.batches import Fed, batch_of
from tests.reference.model.models import random_checkpoint

pytestmark = pytest.mark.gpu
STEPS = 24


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_it_gives_what_the_reference_gives(model_type: str) -> None:
    check_batch_for_batch(GpuMachine(), model_type)


def test_tokens_are_taken_from_where_they_were_sampled() -> None:
    check_tokens_in_flight(GpuMachine())


@pytest.mark.parametrize("num_rows", [1, 3, 9, 64])
def test_long_runs_of_steps_in_flight_give_what_steps_apart_give(num_rows: int) -> None:
    """Each step's arrays are written while the one before it computes: one that was overwritten would show here."""
    limits = LIMITS | {"num_blocks": 2 * num_rows}
    runner = DeviceRunner(*random_checkpoint("qwen3", "bfloat16", **SHAPE), GpuMachine(), **limits)
    apart, in_flight = (drawn(runner, num_rows, at_once) for at_once in (1, 2))
    np.testing.assert_array_equal(apart, in_flight)
    assert (apart >= 0).all()


def drawn(runner: DeviceRunner, num_rows: int, at_once: int) -> np.ndarray:  # [STEPS, num_rows]
    """Tokens of sequences whose places in the batch change, with one or two steps in flight."""
    random = np.random.default_rng(1)
    rows = [Fed([int(random.integers(1, VOCAB))], [2 * row, 2 * row + 1]) for row in range(num_rows)]
    columns = {
        "temperature": np.ones(num_rows, np.float32),
        "seed": random.integers(0, 2**32, (num_rows, 2), np.uint32),
    }
    tickets: list[tuple[np.ndarray, Ticket]] = []
    answers: list[np.ndarray] = []
    place = np.arange(num_rows)  # of each sequence in the batch before
    for step in range(STEPS):
        if step:
            tokens = -1 - place if at_once == 2 else answers[-1]
            for fed, token in zip(rows, tokens.tolist(), strict=True):
                fed.token_ids.append(token)
        order = random.permutation(num_rows) if step % 5 == 0 else np.arange(num_rows)
        place = np.argsort(order)
        batch = batch_of([(rows[number], 1) for number in order], BLOCK_SIZE, **columns)
        tickets.append((place, runner.submit(batch)))
        if len(tickets) == at_once:
            answers.append(taken(runner, *tickets.pop(0)))
    answers += [taken(runner, *one) for one in tickets]
    return np.array(answers)


def taken(runner: DeviceRunner, place: np.ndarray, ticket: Ticket) -> np.ndarray:
    return runner.result(ticket).token_ids[place]

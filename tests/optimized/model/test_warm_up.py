"""The steps before the first request are such as an engine submits, and small enough for the memory there is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from optimized.model.choose import asked
from optimized.model.runner import DeviceRunner
from optimized.model.warm_up import counts, mixed_steps, sampled_steps, step_of
from reference.serving.runner import Batch


@pytest.mark.parametrize("most", [1, 2, 3, 100, 8192])
def test_prompts_double_up_to_the_most(most: int) -> None:
    found = list(counts(most))
    assert found[0] == 1 and found[-1] == most
    assert all(count < after <= 2 * count for count, after in pairwise(found))


@pytest.mark.parametrize("lengths", [[1], [16], [17], [100], [1, 1, 16], [1, 40, 3]])
def test_prompts_have_slots_of_their_own(lengths: list[int]) -> None:
    batch = step_of(lengths, 16)
    assert batch.num_rows == len(lengths) and batch.num_tokens == sum(lengths) == len(set(batch.slot_mapping.tolist()))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    blocks = batch.block_table[rows, batch.positions // 16]
    np.testing.assert_array_equal(batch.slot_mapping, blocks * 16 + batch.positions % 16)


@pytest.mark.parametrize(("max_rows", "num_blocks"), [(1, 1), (1, 2), (2, 3), (64, 5), (64, 1000)])
def test_mixed_steps_fit_the_blocks_there_are(max_rows: int, num_blocks: int) -> None:
    for batch in mixed_steps(max_rows, 16, num_blocks):
        batch.check_rows()
        assert batch.block_table.max() < num_blocks and batch.num_decode_rows == batch.num_rows - 1 >= 1


class Submitted(DeviceRunner):
    """A runner that computes nothing."""

    def __init__(self, max_model_len: int, num_blocks: int) -> None:
        self.block_size, self.num_blocks, self._max_model_len = 16, num_blocks, max_model_len
        self.graphs = Mock(has=lambda size: True)
        self.batches: list[Batch] = []

    def submit(self, batch: Batch) -> int:
        self.batches.append(batch)
        return 0

    def result(self, ticket: int) -> Any:
        return None

    def reset(self) -> None:
        pass


@pytest.mark.parametrize(("max_model_len", "num_blocks"), [(64, 1000), (5000, 3)])
def test_no_step_leaves_the_positions_or_the_blocks_there_are(max_model_len: int, num_blocks: int) -> None:
    runner, told = Submitted(max_model_len, num_blocks), []
    runner.warm_up(64, 8192, lambda done, of: told.append((done, of)))
    assert max(batch.positions.max() for batch in runner.batches) < max_model_len
    assert max(batch.block_table.max() for batch in runner.batches) < num_blocks
    assert told[-1] == (len(runner.batches), len(runner.batches))


def test_every_way_to_choose_is_taken() -> None:
    steps = [asked(batch.sampling, batch.seq_lens, np.empty(0, np.int32)) for batch in sampled_steps(16)]
    assert {one.limits for one in steps} == {"none", "few", "any"}
    assert {one.num_top for one in steps} >= {-1, 0, 20}
    assert {one.adjusts for one in steps} == {one.draws for one in steps} == {False, True}

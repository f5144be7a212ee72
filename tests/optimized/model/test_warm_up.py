"""The steps before the first request are such as an engine submits, and small enough for the memory there is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from optimized.model.choose import asked
from optimized.model.warm_up import prompt_step, sampled_steps, token_counts


@pytest.mark.parametrize("most", [1, 2, 3, 100, 8192])
def test_prompts_double_up_to_the_most(most: int) -> None:
    counts = list(token_counts(most))
    assert counts[0] == 1 and counts[-1] == most
    assert all(count < after <= 2 * count for count, after in pairwise(counts))


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 100])
def test_a_prompt_has_slots_of_its_own(num_tokens: int) -> None:
    batch = prompt_step(num_tokens, 16)
    batch.check_rows()
    assert batch.num_rows == 1 and batch.num_tokens == num_tokens == len(set(batch.slot_mapping.tolist()))
    blocks = batch.block_table[0][batch.positions // 16]
    np.testing.assert_array_equal(batch.slot_mapping, blocks * 16 + batch.positions % 16)


def test_every_way_to_choose_is_taken() -> None:
    steps = [asked(batch.sampling, batch.seq_lens, np.empty(0, np.int32)) for batch in sampled_steps(16)]
    assert {one.limits for one in steps} == {"none", "few", "any"}
    assert {one.num_top for one in steps} >= {-1, 0, 20}
    assert {one.adjusts for one in steps} == {one.draws for one in steps} == {False, True}

"""The model without weights: what it says depends on every token and every slot, and a wrong batch is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.model.history_runner import HistoryModel, HistoryRunner
from reference.serving.runner import NOT_SAMPLED, NOTHING_ALLOWED, UNUSABLE_LOGITS, Batch
from tests.reference.model.batches import Fed, batch_of

VOCAB_SIZE, BLOCK_SIZE = 40, 4
MODEL = HistoryModel(VOCAB_SIZE)
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=15)


def new_runner(model: HistoryModel = MODEL) -> HistoryRunner:
    return HistoryRunner(model, num_token_ids=VOCAB_SIZE, num_blocks=12, block_size=BLOCK_SIZE)


def likeliest(token_ids: list[int]) -> int:
    return int(np.argmax(MODEL.last_logits(token_ids)))


# The model


@given(TOKENS, TOKENS)
def test_logits_are_a_function_of_the_whole_history(ours: list[int], theirs: list[int]) -> None:
    same = np.array_equal(MODEL.last_logits(ours), MODEL.last_logits(theirs))
    assert same == (ours == theirs)
    logits = MODEL.last_logits(ours)
    assert logits.dtype == np.float32 and logits.shape == (VOCAB_SIZE,)
    assert (logits >= -2 * MODEL.scale).all() and (logits < 2 * MODEL.scale).all()


@given(TOKENS)
def test_the_logits_of_every_token_are_those_of_its_history(token_ids: list[int]) -> None:
    for end, logits in enumerate(MODEL.all_logits(token_ids), start=1):
        np.testing.assert_array_equal(logits, MODEL.last_logits(token_ids[:end]))
    assert end == len(token_ids)


# The runner


@given(TOKENS, TOKENS, st.integers(0, 2**32 - 1))
def test_chunks_in_any_company_give_what_the_model_says(ours: list[int], theirs: list[int], seed: int) -> None:
    chance = random.Random(seed)
    runner = new_runner()
    blocks = chance.sample(range(12), 8)
    sequences = [Fed(ours, blocks[:4]), Fed(theirs, blocks[4:])]
    while left := [fed for fed in sequences if fed.num_computed < len(fed.token_ids)]:
        rows = [(fed, chance.randint(1, len(fed.token_ids) - fed.num_computed)) for fed in left]
        rows.sort(key=lambda row: row[1] > 1)
        output = runner.result(runner.submit(batch_of(rows, BLOCK_SIZE, num_top=2)))
        for (fed, _), token_id in zip(rows, output.token_ids.tolist(), strict=True):
            whole = fed.num_computed == len(fed.token_ids)
            assert token_id == (likeliest(fed.token_ids) if whole else NOT_SAMPLED)
        runner.poison([block for block in range(12) if block not in blocks])


def test_a_token_that_was_sampled_by_another_row_of_the_batch_before() -> None:
    runner = new_runner()
    a, b = Fed([1, 2], [0]), Fed([3, 4], [1])
    first = runner.submit(batch_of([(a, 2), (b, 2)], BLOCK_SIZE))
    a.token_ids.append(-1)
    b.token_ids.append(-2)
    second = runner.submit(batch_of([(b, 1), (a, 1)], BLOCK_SIZE))
    of_a, of_b = runner.result(first).token_ids.tolist()
    assert runner.result(second).token_ids.tolist() == [likeliest([3, 4, of_b]), likeliest([1, 2, of_a])]


def test_scores_are_of_the_asked_tokens_and_nothing_is_said_of_rows_that_do_not_sample() -> None:
    runner = new_runner()
    a, b = Fed([1, 2, 3], [0]), Fed([3, 4], [1])
    output = runner.result(
        runner.submit(batch_of([(a, 2), (b, 2)], BLOCK_SIZE, num_top=1, num_logprobs=np.array([20, 1], np.int32)))
    )
    assert output.scores is not None and output.prompt_scores is not None
    assert np.isnan(output.scores.logprobs[0]) and output.scores.ranks.tolist() == [0, 1]
    assert output.scores.top_ids.shape == (2, 1), "a row that does not sample asks for nothing"
    for number, history in enumerate(([1], [1, 2], [3])):
        logits = MODEL.last_logits(history)
        target = [2, 3, 4][number]
        expected = logits[target] - np.log(np.exp(logits).sum())
        assert abs(output.prompt_scores.logprobs[number] - expected) < 1e-5
        assert output.prompt_scores.ranks[number] == 1 + (logits > logits[target]).sum()
        assert output.prompt_scores.top_ids[number].tolist() == [np.argmax(logits)]


class Broken(HistoryModel):
    """Its logits hold a NaN."""

    def logits(self, seed: int) -> np.ndarray:
        logits = super().logits(seed)
        logits[5] = np.nan
        return logits


def test_logits_that_are_unusable_have_no_token_and_no_rank() -> None:
    runner = new_runner(Broken(VOCAB_SIZE))
    batch = batch_of([(Fed([1, 2, 3], [0]), 3)], BLOCK_SIZE, num_top=1)
    output = runner.result(runner.submit(batch))
    assert output.token_ids.tolist() == [UNUSABLE_LOGITS]
    assert output.prompt_scores is not None and output.prompt_scores.ranks.tolist() == [0, 0]
    nothing = batch_of([(Fed([1], [0]), 1)], BLOCK_SIZE, mask=np.zeros((1, 2), np.uint32), mask_row=np.array([0]))
    runner = new_runner()
    assert runner.result(runner.submit(nothing)).token_ids.tolist() == [NOTHING_ALLOWED]


# What is refused


def filled() -> tuple[HistoryRunner, Fed]:
    """A sequence of six tokens in blocks 2 and 3, and a seventh that is to come."""
    runner = new_runner()
    fed = Fed([1, 2, 3, 4, 5, 6], [2, 3])
    runner.result(runner.submit(batch_of([(fed, 6)], BLOCK_SIZE)))
    fed.token_ids.append(7)
    return runner, fed


def next_batch(fed: Fed) -> Batch:
    return batch_of([(fed, 1)], BLOCK_SIZE)


def test_the_next_batch_as_it_should_be_is_taken() -> None:
    runner, fed = filled()
    assert runner.result(runner.submit(next_batch(fed))).token_ids.tolist() == [likeliest([1, 2, 3, 4, 5, 6, 7])]


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (lambda batch: replace(batch, block_table=np.array([[4, 3]])), "reads slot 16 for position 0.*holds nothing"),
        (lambda batch: replace(batch, block_table=np.array([[3, 3]])), "reads slot 12 for position 0.*position 4"),
        (lambda batch: replace(batch, block_table=np.array([[2, -1]])), "block table ends before its 7 tokens"),
        (lambda batch: replace(batch, slot_mapping=np.array([15])), r"slots \[15\] are not where its block table"),
        (lambda batch: replace(batch, slot_mapping=np.array([-1])), r"slots \[-1\] are not where its block table"),
        (lambda batch: replace(batch, seq_lens=np.array([8])), r"positions \[6\] do not end at 8 tokens"),
        (lambda batch: replace(batch, positions=np.array([5])), r"positions \[5\] do not end at 7 tokens"),
    ],
)
def test_a_wrong_row_is_refused(spoilt: Callable[[Batch], Batch], says: str) -> None:
    runner, fed = filled()
    with pytest.raises(ValueError, match=f"row 0.*{says}"):
        runner.submit(spoilt(next_batch(fed)))


def test_a_poisoned_block_is_not_read() -> None:
    runner, fed = filled()
    runner.poison([2])
    with pytest.raises(ValueError, match="reads slot 8 for position 0, and it holds nothing"):
        runner.submit(next_batch(fed))


def test_what_an_earlier_owner_left_in_a_block_is_not_read() -> None:
    """Block 2 is opened by a sequence of one token: the others that are in it are void."""
    runner, fed = filled()
    runner.submit(batch_of([(Fed([1], [2]), 1)], BLOCK_SIZE))
    with pytest.raises(ValueError, match="reads slot 9 for position 1, and it holds nothing"):
        runner.submit(next_batch(fed))


def test_two_tokens_in_one_slot_and_rows_in_the_wrong_order_are_refused() -> None:
    runner = new_runner()
    with pytest.raises(ValueError, match="two tokens are written to one slot"):
        runner.submit(batch_of([(Fed([1], [0]), 1), (Fed([2], [0]), 1)], BLOCK_SIZE))
    with pytest.raises(ValueError, match="rows of one token come before longer ones"):
        runner.submit(batch_of([(Fed([1, 2], [0]), 2), (Fed([2], [1]), 1)], BLOCK_SIZE))


def test_tickets_are_taken_in_order_and_two_at_a_time() -> None:
    runner = new_runner()
    with pytest.raises(ValueError, match="no batch is in flight"):
        runner.result(1)
    first, second = (runner.submit(batch_of([(Fed([1], [block]), 1)], BLOCK_SIZE)) for block in (0, 1))
    with pytest.raises(ValueError, match="2 batches are in flight already"):
        runner.submit(batch_of([(Fed([1], [2]), 1)], BLOCK_SIZE))
    with pytest.raises(ValueError, match=f"expected ticket {first}, got {second}"):
        runner.result(second)
    assert runner.result(first).token_ids.tolist() == runner.result(second).token_ids.tolist() == [likeliest([1])]
    runner.submit(batch_of([(Fed([1], [0]), 1)], BLOCK_SIZE))
    runner.reset()
    with pytest.raises(ValueError, match="no batch is in flight"):
        runner.result(first)

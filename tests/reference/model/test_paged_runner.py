"""The paged runner gives what the whole sequence gives, however it is cut, batched and paged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reference.kernels.log_probs import log_softmax, token_log_probs
from reference.model import paged_runner
from reference.model.config import ModelConfig
from reference.model.kv_memory import storage_dtype
from reference.model.padding import bucket_blocks, bucket_queries, bucket_rows
from reference.model.paged_runner import PagedRunner, build_runner, token_scores
from reference.model.runner import JaxRunner
from reference.serving.runner import MAX_ROWS, NOT_SAMPLED, UNUSABLE_LOGITS, Batch, StepOutput
from tests.reference.model.batches import Fed, batch_of
from tests.reference.model.models import VOCAB_SIZE, random_checkpoint

BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 8, 12, 48
TOLERANCE = 1e-4


class Both:
    """A model behind the seam, and whole sequences at a time."""

    def __init__(self) -> None:
        # A mixture of experts: there one row could harm another. `test_matrix.py` has a dense model too.
        config, tensors = random_checkpoint("qwen3_moe", num_hidden_layers=2)
        self.whole = JaxRunner(config, tensors, max_model_len=MAX_LEN)
        self.paged = PagedRunner(
            config,
            tensors,
            num_token_ids=VOCAB_SIZE,
            max_model_len=MAX_LEN,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
        )

    def log_probs(self, token_ids: Sequence[int]) -> np.ndarray:  # f32 [T, V], of the token after each
        filled = [*token_ids, *[1] * (MAX_LEN - len(token_ids))]  # one length is compiled; what follows has no effect
        return log_softmax(np.stack([*self.whole.all_logits(filled)])[: len(token_ids)])


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


@pytest.fixture
def runner(both: Both) -> Iterator[PagedRunner]:
    """With NaN in all of its memory."""
    poison(both.paged, [])
    yield both.paged
    both.paged.reset()


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCAB_SIZE, count).tolist()


def poison(runner: PagedRunner, sequences: Sequence[Fed]) -> None:
    """NaN wherever no sequence has a token: in blocks of nobody's, and beyond the last token."""
    owned = np.zeros(NUM_BLOCKS * BLOCK_SIZE, np.bool_)
    for fed in sequences:
        for position in range(fed.num_computed):
            owned[fed.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE] = True
    mask = owned.reshape(NUM_BLOCKS, 1, BLOCK_SIZE, 1)
    runner.kv = jax.tree.map(lambda cache: jnp.where(mask, cache, jnp.nan), runner.kv)


def run(runner: PagedRunner, rows: Sequence[tuple[Fed, int]], **options: Any) -> StepOutput:
    return runner.result(runner.submit(batch_of(rows, BLOCK_SIZE, **options)))


def check(both: Both, rows: Sequence[tuple[Fed, int]], output: StepOutput) -> None:
    """What a batch said of every token is what is said of the whole sequence."""
    place = 0
    for row, (fed, count) in enumerate(rows):
        expected = both.log_probs(fed.token_ids)
        for position in range(fed.num_computed - count, fed.num_computed):
            if position + 1 < len(fed.token_ids):
                assert output.prompt_scores is not None
                scores, number, token_id = output.prompt_scores, place, fed.token_ids[position + 1]
                place += 1
            else:
                assert output.scores is not None
                scores, number, token_id = output.scores, row, int(output.token_ids[row])
                assert expected[position].max() - expected[position, token_id] < TOLERANCE
            assert abs(scores.logprobs[number] - expected[position, token_id]) < TOLERANCE
            top = scores.top_ids[number]
            np.testing.assert_allclose(scores.top_logprobs[number], expected[position, top], atol=TOLERANCE)
            np.testing.assert_allclose(
                scores.top_logprobs[number], np.sort(expected[position])[::-1][: len(top)], atol=TOLERANCE
            )
        sampled = fed.num_computed == len(fed.token_ids)
        assert (output.token_ids[row] >= 0) == sampled and (sampled or output.token_ids[row] == NOT_SAMPLED)
    assert place == (0 if output.prompt_scores is None else len(output.prompt_scores.logprobs))


def step(both: Both, sequences: Sequence[Fed], rows: Sequence[tuple[Fed, int]]) -> StepOutput:
    """Run a batch among poison; nobody else's memory is touched, and what it said is right."""
    poison(both.paged, sequences)
    options = {"num_top": 3, "num_logprobs": np.full(len(rows), 3, np.int32)}
    output = run(both.paged, rows, **options)
    held = {block for fed in sequences for block in fed.blocks[: -(-fed.num_computed // BLOCK_SIZE)]}
    others = [block for block in range(NUM_BLOCKS) if block not in held]
    for memory in jax.tree.leaves(both.paged.kv):
        assert np.isnan(np.asarray(memory)[others]).all(), "padding was written to a block of nobody's"
    check(both, rows, output)
    return output


def test_prompts_in_chunks_beside_decoding_rows(both: Both, runner: PagedRunner) -> None:
    """Rows of different lengths; three that decode, so that one is padding; blocks in no order."""
    a, b, c = Fed(tokens(0, 9), [7, 2]), Fed(tokens(1, 21), [0, 11, 4]), Fed(tokens(2, 13), [5, 9])
    sequences = [a, b, c]

    def extend(rows: Sequence[tuple[Fed, int]], output: StepOutput) -> None:
        for (fed, _), token_id in zip(rows, output.token_ids.tolist(), strict=True):
            if token_id >= 0:
                fed.token_ids.append(token_id)

    for rows in (
        [(a, 9), (b, 5)],
        [(a, 1), (b, 10), (c, 3)],
        [(a, 1), (b, 5), (c, 9)],
        [(c, 1), (a, 1), (b, 1)],
        [(b, 1), (c, 1), (a, 1)],
    ):
        extend(rows, step(both, sequences, rows))
    assert [len(fed.token_ids) for fed in sequences] == [14, 23, 15]


@pytest.mark.parametrize("seed", range(4))
def test_any_cut_of_any_sequences(both: Both, runner: PagedRunner, seed: int) -> None:
    """At most 16 tokens a batch, 32 a sequence, and three rows where all decode, so that few shapes are compiled."""
    chance = random.Random(seed)
    blocks = chance.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    sequences = [Fed(tokens(10 * seed + i, chance.randint(4, 32)), blocks[4 * i : 4 * i + 4]) for i in range(3)]
    while left := [fed for fed in sequences if fed.num_computed + 3 < len(fed.token_ids)]:
        rows, room = [], 16
        for fed in chance.sample(left, chance.randint(1, len(left))):
            count = min(room, chance.choice((1, 3, 8, 16)), len(fed.token_ids) - fed.num_computed - 3)
            rows += [(fed, count)] if count else []
            room -= count
        if max(count for _, count in rows) == 1:
            rows[0] = rows[0][0], 2
        step(both, sequences, sorted(rows, key=lambda row: row[1] > 1))
    while any(fed.num_computed < len(fed.token_ids) for fed in sequences):
        for fed in sequences:
            fed.token_ids += [7] * (fed.num_computed == len(fed.token_ids))
        step(both, sequences, [(fed, 1) for fed in sequences])


def test_a_long_table_beside_a_short_one(both: Both, runner: PagedRunner) -> None:
    long, short, other = Fed(tokens(3, 41), [3, 1, 4, 0, 5, 9]), Fed(tokens(4, 4), [2]), Fed(tokens(5, 3), [6])
    for rows in ([(long, 16)], [(long, 16)], [(long, 8), (short, 3)], [(long, 1), (short, 1), (other, 3)]):
        step(both, [long, short, other], rows)


def test_two_batches_in_flight_and_tokens_that_nobody_has_seen(both: Both, runner: PagedRunner) -> None:
    sequences = [Fed(tokens(5, 3), [0]), Fed(tokens(6, 5), [1]), Fed(tokens(7, 4), [2])]
    before = [(fed, len(fed.token_ids)) for fed in sequences]
    tickets = [runner.submit(batch_of(before, BLOCK_SIZE))]
    for _ in range(3):
        row_of = {id(fed): row for row, (fed, _) in enumerate(before)}
        for fed in sequences:
            fed.token_ids.append(-1 - row_of[id(fed)])
        rows = [(fed, 1) for fed in reversed(sequences)] if len(tickets) % 2 else [(fed, 1) for fed in sequences]
        tickets.append(runner.submit(batch_of(rows, BLOCK_SIZE)))
        for (fed, _), token_id in zip(before, runner.result(tickets[-2]).token_ids.tolist(), strict=True):
            fed.token_ids[-1] = token_id
        before = rows
    for fed in sequences:
        expected = both.log_probs(fed.token_ids)
        for position in range(len(fed.token_ids) - 4, len(fed.token_ids) - 1):
            assert expected[position].max() - expected[position, fed.token_ids[position + 1]] < TOLERANCE


def test_nothing_is_said_of_rows_that_do_not_sample(runner: PagedRunner) -> None:
    a, b = Fed(tokens(7, 4), [0]), Fed(tokens(8, 3), [1])
    output = run(runner, [(a, 2), (b, 3)], num_logprobs=np.array([20, 1], np.int32))
    assert output.prompt_scores is None and output.scores is not None
    assert output.token_ids[0] == NOT_SAMPLED
    assert np.isnan(output.scores.logprobs[0]) and output.scores.ranks.tolist() == [0, 1]
    assert np.isnan(output.scores.top_logprobs[0]).all()
    again = Fed(tokens(7, 4), [0]), Fed(tokens(8, 3), [1])
    output = run(runner, [(again[0], 2), (again[1], 3)], num_logprobs=np.array([20, -1], np.int32))
    assert output.scores is None, "nobody who samples asked"


def test_one_broken_sequence_harms_no_other(runner: PagedRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding of token 0 is NaN. Who has it gets no token and no rank; beside it all is as it was, to the bit."""

    def outputs(last: int) -> list[StepOutput]:
        broken, sound, other = Fed([5, last, 7, 8], [0]), Fed(tokens(9, 10), [1, 2]), Fed(tokens(8, 5), [3])
        options = {"num_top": 2, "num_logprobs": np.full(3, 2, np.int32)}
        runner.reset()
        first = run(runner, [(broken, 3), (sound, 9), (other, 4)], **options)
        return [first, run(runner, [(broken, 1), (sound, 1), (other, 1)], **options)]

    table = runner._ends.embedding.at[0].set(jnp.nan)
    monkeypatch.setattr(runner, "_ends", runner._ends._replace(embedding=table))
    spoilt, usual = outputs(0), outputs(6)
    assert spoilt[1].token_ids[0] == UNUSABLE_LOGITS and usual[1].token_ids[0] >= 0
    assert spoilt[1].token_ids[1:].tolist() == usual[1].token_ids[1:].tolist()
    assert spoilt[1].scores is not None and spoilt[1].scores.ranks.tolist() == [0, 1, 1]
    for said, expected in zip(spoilt, usual, strict=True):
        # The NaN reaches the token before it too, which the same call computes (`reference/kernels/attention.py`).
        assert said.prompt_scores is None or said.prompt_scores.ranks[:3].tolist() == [0, 0, 0]
        for scores, others, at in ((said.prompt_scores, expected.prompt_scores, 3), (said.scores, expected.scores, 1)):
            if scores is not None and others is not None:
                np.testing.assert_array_equal(scores.logprobs[at:], others.logprobs[at:])
                np.testing.assert_array_equal(scores.top_logprobs[at:], others.top_logprobs[at:])


# What is refused, and what comes after an error


def test_tickets_are_taken_in_order_and_two_at_a_time(runner: PagedRunner) -> None:
    with pytest.raises(ValueError, match="no batch is in flight"):
        runner.result(1)
    prompt = tokens(5, 3)
    first, second = (runner.submit(batch_of([(Fed(prompt, [block]), 3)], BLOCK_SIZE)) for block in (0, 1))
    with pytest.raises(ValueError, match="2 batches are in flight already"):
        runner.submit(batch_of([(Fed(prompt, [2]), 3)], BLOCK_SIZE))
    with pytest.raises(ValueError, match=f"expected ticket {first}, got {second}"):
        runner.result(second)
    assert runner.result(first).token_ids.tolist() == runner.result(second).token_ids.tolist()


def test_rows_in_the_wrong_order_and_too_many_are_refused(runner: PagedRunner) -> None:
    with pytest.raises(ValueError, match="rows of one token come before longer ones"):
        runner.submit(batch_of([(Fed([1, 2], [0]), 2), (Fed([1], [1]), 1)], BLOCK_SIZE))
    many = batch_of([(Fed([1], [0]), 1) for _ in range(MAX_ROWS + 1)], BLOCK_SIZE)
    with pytest.raises(ValueError, match=f"{MAX_ROWS + 1} rows; at most {MAX_ROWS}"):
        runner.submit(many)


@pytest.mark.parametrize("part", ["_begin_layer", "_attend", "_logits"])
def test_after_an_error_and_a_reset_the_runner_is_as_new(
    runner: PagedRunner, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fed() -> Fed:
        return Fed(tokens(5, 3), [0])

    expected = run(runner, [(fed(), 3)]).token_ids
    runner.submit(batch_of([(fed(), 3)], BLOCK_SIZE))  # is in flight when it happens
    works, calls = getattr(runner, part), iter(range(9))

    def fails(*arguments: Any) -> Any:
        done = works(*arguments)  # memory that was donated is gone
        if part == "_logits" or next(calls):
            raise ZeroDivisionError
        return done

    with monkeypatch.context() as patch:
        patch.setattr(runner, part, fails)
        with pytest.raises(ZeroDivisionError):
            runner.submit(batch_of([(fed(), 3)], BLOCK_SIZE))
    runner.reset()
    with pytest.raises(ValueError, match="no batch is in flight"):
        runner.result(1)
    assert all(not np.asarray(cache).any() for cache in jax.tree.leaves(runner.kv))
    np.testing.assert_array_equal(run(runner, [(fed(), 3)]).token_ids, expected)


# Weights, sizes, scores


def test_widened_weights_give_the_same_to_the_bit() -> None:
    config, tensors = random_checkpoint("qwen3_moe", "bfloat16", num_hidden_layers=1)
    sizes = {"num_token_ids": VOCAB_SIZE, "max_model_len": 16, "num_blocks": 4, "block_size": BLOCK_SIZE}
    said = []
    for widen in (False, True):
        runner = PagedRunner(config, tensors, **sizes, widen=widen)
        weight = runner._layers[0].attention.q_proj.weight
        assert weight.dtype == (np.float32 if widen else config.dtype.dtype)
        seen = []
        head = runner._logits

        def kept(*arrays: Any, head: Any = head, seen: list[Any] = seen) -> Any:
            seen.append(head(*arrays))
            return seen[-1]

        runner._logits = kept
        fed = Fed([], [2])
        for token_id in tokens(0, 6):
            fed.token_ids.append(token_id)
            run(runner, [(fed, 1)])
        said.append([*seen, *jax.tree.leaves(runner.kv)])
    for plain, wide in zip(*said, strict=True):
        assert np.asarray(plain).any() and np.asarray(plain).tobytes() == np.asarray(wide).tobytes()


def test_the_likeliest_tokens_are_those_of_a_full_sort() -> None:
    """Among ties, with zeros of both signs; and none where the logits are unusable."""
    random_ = np.random.default_rng(0)
    logits = random_.choice(np.array([0.0, -0.0, 1.0, -2.5, -np.inf], np.float32), (6, 500))
    logits[3] = -0.0
    logits[4, 77] = np.nan
    logits[5] = -np.inf
    token_ids = np.array([0, 5, 499, 3, 3, 3], np.int32)
    actual = jax.jit(token_scores, static_argnums=2)(logits, token_ids, 20)
    expected = token_log_probs(logits, token_ids, 20)
    np.testing.assert_allclose(actual[0][:4], expected[0][:4], atol=1e-5)
    np.testing.assert_array_equal(actual[1], [*expected[1][:4], 0, 0])
    np.testing.assert_array_equal(actual[2][:4], expected[2][:4])
    np.testing.assert_allclose(actual[3][:4], expected[3][:4], atol=1e-5)
    assert np.isnan(actual[0][4:]).all()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 17, 33, 100, 1000])
def test_a_bucket_holds_what_is_asked_and_is_its_own_bucket(count: int) -> None:
    for bucket in (bucket_rows, bucket_blocks, bucket_queries):
        assert count <= bucket(count) == bucket(bucket(count))
    assert bucket_rows(count) < 2 * count or count == 1


class Recorded:
    """Stands in for the runner: what it would have been built with."""

    def __init__(self, config: ModelConfig, tensors: Any, **sizes: Any) -> None:
        self.config, self.sizes = config, sizes


@pytest.mark.parametrize(
    ("memory", "asked", "num_blocks", "widen"),
    [
        (2**40, None, 16 * 100 // 16, True),  # sixteen sequences of 100 tokens
        (2**40, 33, 3, True),  # what was asked for, in whole blocks
        (2**40, 1, 1, True),
        (2**20, None, 2**17 // (2 * 3 * 4 * 16 * 2) // 16 + 1, False),  # an eighth of the memory: 170 tokens
        (2**20, 10_000, 625, False),  # who asks for more gets it
        (0, None, 1, False),
    ],
)
def test_memory_is_shared_out(
    monkeypatch: pytest.MonkeyPatch, memory: int, asked: int | None, num_blocks: int, widen: bool
) -> None:
    config, tensors = random_checkpoint("qwen3", "bfloat16")
    monkeypatch.setattr(paged_runner, "PagedRunner", Recorded)
    monkeypatch.setattr(
        paged_runner.os, "sysconf", {"SC_PAGE_SIZE": 2**10, "SC_PHYS_PAGES": memory // 2**10}.__getitem__
    )
    made: Any = build_runner(config, tensors, num_token_ids=190, max_model_len=100, num_kv_tokens=asked)
    assert made.sizes == {
        "num_token_ids": 190,
        "max_model_len": 100,
        "num_blocks": num_blocks,
        "widen": widen,
    }


def test_memory_is_held_in_the_models_dtype() -> None:
    config, tensors = random_checkpoint("qwen3", "bfloat16", num_hidden_layers=1)
    runner = build_runner(config, tensors, num_token_ids=VOCAB_SIZE, max_model_len=16, num_kv_tokens=40)
    assert (runner.num_blocks, runner.block_size) == (3, 16)
    shape = (3, config.num_kv_heads, 16, config.head_dim)
    caches = jax.tree.leaves(runner.kv)
    assert [(cache.shape, cache.dtype) for cache in caches] == [(shape, storage_dtype(config.dtype.dtype))] * 2


def test_the_check_sees_a_table_that_is_cut_short(both: Both, runner: PagedRunner) -> None:
    """The negative control."""
    fed = Fed(tokens(3, 18), [3, 1, 4])
    step(both, [fed], [(fed, 16)])
    batch: Batch = batch_of([(fed, 2)], BLOCK_SIZE, num_logprobs=np.array([3], np.int32), num_top=3)
    wrong = replace(batch, block_table=np.array([[3, 4, 1]], np.int32))
    output = runner.result(runner.submit(wrong))
    with pytest.raises(AssertionError):
        check(both, [(fed, 2)], output)

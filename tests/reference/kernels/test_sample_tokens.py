"""Penalties and sampling as operations over rows: together they give the token that `sample_token` gives each row, also
where penalties overflow; and what a request does not name keeps its bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.formats import Array
from reference.kernels.adjust_logits import adjust_logits
from reference.kernels.sample_tokens import allowed_tokens, sample_tokens, was_usable
from reference.kernels.sampling import is_usable
from reference.serving.request import SamplingParams
from reference.serving.runner import NOT_SAMPLED, NOTHING_ALLOWED, UNUSABLE_LOGITS
from tests.reference.kernels.helpers import assert_same_bits, f32, normal
from tests.reference.model.sampled_rows import Row, expected, sampling_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of infinities, to which NumPy objects

Run = Callable[..., Any]
SIZE, NUM_TOKEN_IDS = 40, 37
HUGE = 3e38


def sampled(rows: Sequence[Row], *, says_turned: bool = True) -> Array:
    """says_turned: as `sample_tokens` must be told what penalties did."""
    sampling, seq_lens, _ = sampling_of(rows, NUM_TOKEN_IDS)
    logits, turned = adjust_logits(
        np.stack([row.logits for row in rows]),
        sampling.history,
        sampling.history_start,
        sampling.prompt_lens,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.bias_ids,
        sampling.bias,
    )
    return sample_tokens(
        logits,
        np.where(sampling.samples, sampling.temperature, np.float32(-1)),
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.seed,
        seq_lens,
        sampling.sample_index,
        sampling.banned_ids,
        sampling.mask,
        sampling.mask_row,
        turned if says_turned else turned[:, :0],
        num_token_ids=NUM_TOKEN_IDS,
    )


def random_row(chance: random.Random) -> Row:
    logits = np.array([chance.gauss(0, 3) for _ in range(SIZE)], np.float32)
    places = chance.sample(range(SIZE), 8)
    logits[places] = chance.choice([logits[places], HUGE, -HUGE, -np.inf])
    if chance.random() < 0.1:
        logits[chance.randrange(SIZE)] = chance.choice([np.nan, np.inf])
    if chance.random() < 0.1:
        logits[:] = chance.choice([HUGE, -HUGE, -np.inf])

    def ids(most: int) -> tuple[int, ...]:
        return tuple(chance.sample([*places, *range(NUM_TOKEN_IDS)][:most], chance.randint(0, most)))

    named = tuple(one for one in ids(SIZE) if one < NUM_TOKEN_IDS)
    params = SamplingParams(
        temperature=chance.choice((0.0, 0.0, 0.3, 1.0, 1e300)),
        top_k=chance.choice((0, 0, 1, 5, 1000)),
        top_p=chance.choice((1.0, 1.0, 0.4, 0.9)),
        min_p=chance.choice((0.0, 0.0, 0.3)),
        repetition_penalty=chance.choice((1.0, 0.5, 1.7, 1e300, 1e-300)),
        presence_penalty=chance.choice((0.0, -2.0, 1.5)),
        frequency_penalty=chance.choice((0.0, -1.0, 0.7)),
        logit_bias=dict.fromkeys(ids(3), 100.0),
        allowed_token_ids=named or None if chance.random() < 0.3 else None,
        seed=chance.getrandbits(64),
    )
    banned = tuple(set(ids(12)))
    return Row(logits, params, (1, *ids(12)), ids(12), banned=banned, samples=chance.random() < 0.9)


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_rows_get_the_token_that_the_specification_gives_them(seed: int) -> None:
    chance = random.Random(seed)
    rows = [random_row(chance) for _ in range(6)]
    right = [expected(row, NUM_TOKEN_IDS) if row.samples else NOT_SAMPLED for row in rows]
    assert sampled(rows).tolist() == right


def overflowing(**params: Any) -> Row:
    logits = np.arange(SIZE, dtype=np.float32)
    logits[3] = HUGE
    return Row(logits, SamplingParams(temperature=0, repetition_penalty=1e-3, **params), prompt=(3,))


def test_a_penalty_that_overflows_leaves_nothing_to_sample_and_is_no_fault_of_the_model() -> None:
    assert sampled([overflowing()]).tolist() == [NOTHING_ALLOWED]
    assert sampled([overflowing()], says_turned=False).tolist() == [UNUSABLE_LOGITS], "the negative control"


def test_what_overflows_and_is_not_allowed_is_no_matter() -> None:
    row = overflowing(allowed_token_ids=(3, 5, 7))
    assert sampled([row]).tolist() == [NOTHING_ALLOWED]
    banned = Row(row.logits, row.params, prompt=(3,), banned=(3,))
    assert sampled([banned]).tolist() == [7] == [expected(banned, NUM_TOKEN_IDS)]


def test_all_penalised_to_nothing() -> None:
    row = Row(np.full(SIZE, -HUGE, np.float32), SamplingParams(repetition_penalty=1e6), prompt=tuple(range(SIZE)))
    assert sampled([row]).tolist() == [NOTHING_ALLOWED] == [expected(row, NUM_TOKEN_IDS)]


def test_turned_logits_are_counted(run: Run) -> None:
    logits = f32(HUGE, -HUGE, HUGE, np.inf, np.nan, -np.inf, 1.0)[None]
    history = np.array([0, 1, 3, 4, 5, 6, -1], np.int32)
    one = np.zeros((1, 0))
    adjusted, turned = run(
        adjust_logits,
        logits,
        history,
        np.array([0, 7], np.int32),
        np.array([7], np.int32),
        f32(0.5),
        f32(0.0),
        f32(0.0),
        one.astype(np.int32),
        one.astype(np.float32),
    )
    # A penalty below 1 raises what is above 0, and lowers nothing beyond the range of numbers.
    assert turned.tolist() == [[1, 0]]
    assert adjusted[0, 0] == np.inf and adjusted[0, 1] == np.float32(-HUGE / 2) and adjusted[0, 2] == np.float32(HUGE)
    assert was_usable(logits, turned[:, :0]).tolist() == [False]
    assert was_usable(adjusted, turned).tolist() == [False], "three of the four were there before"


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_a_row_is_usable_after_it_was_adjusted_if_it_was_before(seed: int) -> None:
    chance = np.random.default_rng(seed)
    values = chance.choice([0.5, HUGE, -HUGE, np.inf, -np.inf, np.nan], (8, 5), p=[0.2, 0.3, 0.2, 0.05, 0.2, 0.05])
    logits, empty = values.astype(np.float32), np.zeros((8, 0), np.int32)
    history = chance.integers(0, 5, 24).astype(np.int32)
    repetition = chance.choice([0.25, 4.0], 8).astype(np.float32)
    starts, none, zeros = np.arange(0, 25, 3, dtype=np.int32), np.zeros(8, np.int32), np.zeros(8, np.float32)
    adjusted, turned = adjust_logits(
        logits, history, starts, none, repetition, zeros, zeros, empty, empty.astype(np.float32)
    )
    assert np.array_equal(was_usable(adjusted, turned), is_usable(logits))


def test_what_no_request_names_keeps_its_bits(run: Run) -> None:
    logits = normal(0, 3, 9)
    logits[0, 5] = -0.0
    logits[1, 2] = np.nan
    history, starts = np.array([1, 1, 4], np.int32), np.array([0, 2, 2, 3], np.int32)
    bias_ids, bias = np.array([[-1], [7], [-1]], np.int32), np.full((3, 1), 2.5, np.float32)
    many = np.full(3, 2.0, np.float32)
    lens = np.array([1, 0, 0], np.int32)
    adjusted, turned = run(adjust_logits, logits, history, starts, lens, many, many, many, bias_ids, bias)
    named = np.zeros((3, 9), bool)
    named[0, 1] = named[2, 4] = named[1, 7] = True
    assert_same_bits(adjusted[~named], logits[~named])
    halved = logits[0, 1] / 2 if logits[0, 1] > 0 else logits[0, 1] * 2
    assert adjusted[0, 1] == np.float32(halved - 2 - 2) and adjusted[1, 7] == logits[1, 7] + np.float32(2.5)
    assert (turned == 0).all()


@pytest.mark.parametrize("words", [0, 1, 2])
def test_ids_beyond_a_mask_are_not_allowed(run: Run, words: int) -> None:
    mask = np.full((1, words), 0xFFFFFFFE, np.uint32)
    banned, mask_row = np.array([[33, -1], [-1, -1]], np.int32), np.array([0, -1], np.int32)
    allowed = run(_allowed, banned, mask, mask_row, vocab_size=70, num_token_ids=68)
    ids = np.arange(70)
    assert np.array_equal(allowed[0], (ids < 32 * words) & (ids % 32 > 0) & (ids != 33))
    assert np.array_equal(allowed[1], ids < 68)


def _allowed(banned: Array, mask: Array, mask_row: Array, *, vocab_size: int, num_token_ids: int) -> Array:
    return allowed_tokens(vocab_size, banned, mask, mask_row, num_token_ids)

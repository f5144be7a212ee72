"""Sampling by rows: each way out of the chain, and each of its ends, by itself; under NumPy, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reference.model.sample_rows import FEW, rows_that_sample
from reference.serving.request import SamplingParams
from reference.serving.runner import NOTHING_ALLOWED, UNUSABLE_LOGITS
from tests.reference.model.logits import (
    NUM_TOKEN_IDS,
    VOCAB_SIZE,
    few_left,
    padding_is_likeliest,
    spread,
    tied,
    with_value,
)
from tests.reference.model.sampled_rows import ALL, Row, Run, check, compiled, eight, expected, sampling_of, with_numpy

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of +inf, to which NumPy objects

CASES = {
    "a nucleus of more than the candidates": eight({"top_p": 0.9}, lambda seed: spread(seed, 0.1)),
    "a nucleus within top-k, more than the candidates": eight(
        {"top_k": 2000, "top_p": 0.9}, lambda seed: spread(seed, 0.3)
    ),
    "top-k of more than the vocabulary, and a nucleus": eight(
        {"top_k": 10**9, "top_p": 0.5}, lambda seed: spread(seed, 0.3)
    ),
    "top-k as large as the candidates": eight({"top_k": FEW}, lambda seed: spread(seed, 0.01)),
    "top-k as large as the vocabulary": eight({"top_k": VOCAB_SIZE}, lambda seed: spread(seed, 0.01)),
    "top-k among ties": eight({"top_k": 3}, lambda seed: np.ones(VOCAB_SIZE, np.float32)),
    "a nucleus among ties": eight({"top_p": 0.01}, lambda seed: np.ones(VOCAB_SIZE, np.float32)),
    "a nucleus of one": eight({"top_p": 1e-30}, lambda seed: spread(seed, 0.01)),
    "fewer left than top-k keeps": eight({"top_k": 50, "top_p": 0.9}, few_left),
    "NaN": eight({"top_k": 3}, lambda seed: with_value(np.nan, spread(seed), 300 * seed)),
    "NaN, greedy": eight({"temperature": 0}, lambda seed: with_value(np.nan, spread(seed), 300 * seed)),
    "NaN where it is banned": eight({}, lambda seed: with_value(np.nan, spread(seed), 9), banned=(9,)),
    "+inf": eight({"top_p": 0.9}, lambda seed: with_value(np.inf, spread(seed))),
    "nothing but -inf": eight({"top_p": 0.9}, lambda seed: np.full(VOCAB_SIZE, -np.inf, np.float32)),
    "all that is allowed is banned": eight({"allowed_token_ids": (5, 6), "top_k": 2}, spread, banned=(6, 5)),
    "all that is allowed has probability 0": eight(
        {"allowed_token_ids": (17,)}, lambda seed: with_value(-np.inf, spread(seed))
    ),
    "the pending token is penalized": eight(
        {"temperature": 0, "frequency_penalty": 2.0, "logit_bias": {33: 100.0, 34: 99.0}},
        spread,
        output=(33, 33),
        pending=True,
    ),
    "padding of the vocabulary is likeliest": eight({}, padding_is_likeliest),
    "the last ids of a mask": eight({"allowed_token_ids": (NUM_TOKEN_IDS - 1, 31, 32, 63, 64)}, spread),
}


@pytest.mark.parametrize("run", [with_numpy, compiled])
@pytest.mark.parametrize("name", CASES)
def test_a_case(name: str, run: Run) -> None:
    check(CASES[name], run, **ALL)


@pytest.mark.parametrize("name", ["all that is allowed is banned", "NaN", "NaN, greedy", "nothing but -inf"])
def test_a_case_has_the_outcome_that_it_is_there_for(name: str) -> None:
    outcome = NOTHING_ALLOWED if "allowed" in name else UNUSABLE_LOGITS
    assert {expected(row, NUM_TOKEN_IDS) for row in CASES[name]} == {outcome}


def penalized(logits: np.ndarray, **row: Any) -> Row:
    return Row(logits, SamplingParams(temperature=0, presence_penalty=2.0), **row)


@pytest.mark.parametrize("run", [with_numpy, compiled])
def test_what_a_row_that_does_not_sample_has_had_is_counted_for_no_other(run: Run) -> None:
    logits = with_value(30.0, np.zeros(VOCAB_SIZE, np.float32), 5)
    logits[6] = 29.0
    silent = penalized(logits, output=(5,), samples=False)
    assert [expected(row, NUM_TOKEN_IDS) for row in (penalized(logits), silent)] == [5, 6]
    check([silent, penalized(logits)] * 8, run, **ALL)


@pytest.mark.parametrize("run", [with_numpy, compiled])
@pytest.mark.parametrize("error", [UNUSABLE_LOGITS, NOTHING_ALLOWED])
def test_a_pending_token_that_turned_out_an_error_counts_for_nothing(run: Run, error: int) -> None:
    """What such a row gives is dropped; but token 0 has not occurred for it."""
    logits = with_value(30.0, np.zeros(VOCAB_SIZE, np.float32), 0)
    logits[1] = 29.0
    sampling, seq_lens, previous = sampling_of([penalized(logits, output=(7,), pending=True)] * 8, NUM_TOKEN_IDS)
    previous[:] = error
    arrays, stages = rows_that_sample(sampling, seq_lens)
    tokens = run(np.tile(logits, (8, 1)), arrays, stages._replace(**ALL), previous, NUM_TOKEN_IDS)
    assert tokens.tolist() == [0] * 8


@pytest.mark.parametrize("run", [with_numpy, compiled])
def test_zeros_of_both_signs_are_one_value(run: Run) -> None:
    """No stage before top-k, which adds 0 and so makes them one: XLA's top-k has 0 above -0."""
    rows = eight({"top_k": 2}, lambda seed: tied(seed, 2))
    assert all(np.signbit(row.logits).any() and not np.signbit(row.logits).all() for row in rows)
    check(rows, run, num_token_ids=VOCAB_SIZE)

"""Log-probabilities against the float64 oracle and torch; ranks and likeliest tokens against plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parity.ulp import oracle
from reference.formats import Array, DType
from reference.kernels.log_probs import log_softmax, token_log_probs
from tests.reference.kernels.helpers import normal

Run = Callable[..., Any]


def assert_close(actual: Array, exact: Array) -> None:
    """Within 2^-22 of 1, or of the value where that is larger: a probability near 1 is the 1 minus what is lost."""
    assert np.all(np.abs(actual - exact) <= 2.0**-22 * np.maximum(1, np.abs(exact)))


@pytest.mark.parametrize("vocab_size", [1, 3, 151_936])
def test_log_softmax_is_the_oracle_rounded(run: Run, vocab_size: int) -> None:
    logits = normal(0, 2, vocab_size, scale=5)
    actual = run(log_softmax, logits)
    assert actual.dtype == np.float32
    assert_close(actual, oracle(log_softmax, logits))
    assert np.allclose(np.exp(actual.astype(float)).sum(-1), 1, atol=1e-5)


def test_logits_of_any_dtype_give_float32(run: Run, dtype: DType) -> None:
    logits = normal(0, 2, 50, dtype=dtype)
    actual = run(log_softmax, logits)
    assert actual.dtype == np.float32
    assert_close(actual, oracle(log_softmax, logits))


def test_torch_agrees(run: Run) -> None:
    logits = normal(1, 4, 1000, scale=5)
    expected = torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()
    assert np.allclose(run(log_softmax, logits), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_a_common_shift_changes_nothing(run: Run, shift: float) -> None:
    logits = np.array([[1.0, 2.0, 4.0]], np.float32)
    assert np.allclose(run(log_softmax, logits + np.float32(shift)), run(log_softmax, logits), atol=1e-6)


def test_impossible_tokens_have_minus_infinity(run: Run) -> None:
    logits = np.array([[-np.inf, 0, 0], [-np.inf, -np.inf, -np.inf]], np.float32)
    assert np.allclose(run(log_softmax, logits)[0], [-np.inf, -np.log(2), -np.log(2)])
    assert np.all(run(log_softmax, logits)[1] == -np.inf)


def test_nan_stays_in_its_row(run: Run) -> None:
    logits = normal(0, 2, 8)
    logits[0, 3] = np.nan
    actual = run(log_softmax, logits)
    assert np.all(np.isnan(actual[0])) and np.all(np.isfinite(actual[1]))


# Few different values, so that ties are common.
LOGITS = hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.integers(-2, 2).map(float))


def falling_order(row: Array) -> list[int]:
    return sorted(range(row.size), key=lambda token_id: (-row[token_id], token_id))


@given(LOGITS, st.data())
@settings(deadline=None)
def test_rank_and_likeliest_are_what_sorting_says(logits: Array, data: st.DataObject) -> None:
    rows, vocab_size = logits.shape
    ids = np.array(data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=rows, max_size=rows)), np.int32)
    num_top = data.draw(st.integers(0, vocab_size + 2))
    log_prob, rank, top_ids, top_log_probs = token_log_probs(logits, ids, num_top)
    all_of_it = log_softmax(logits)
    assert top_ids.shape == top_log_probs.shape == (rows, min(num_top, vocab_size))
    for r in range(rows):
        by_hand = falling_order(logits[r])[:num_top]
        assert top_ids[r].tolist() == by_hand
        assert np.array_equal(top_log_probs[r], all_of_it[r, by_hand])
        assert log_prob[r] == all_of_it[r, ids[r]]
        assert rank[r] == 1 + sum(logits[r] > logits[r, ids[r]])


def test_numpy_and_jax_agree(run: Run) -> None:
    logits, ids = normal(0, 3, 151_936, scale=4), np.array([0, 151_935, -1], np.int32)
    log_prob, rank, top_ids, top_log_probs = run(token_log_probs, logits, ids, num_top=20)
    assert rank.dtype == top_ids.dtype == np.int32 and log_prob.dtype == top_log_probs.dtype == np.float32
    for r in range(2):
        assert rank[r] == 1 + np.sum(logits[r] > logits[r, ids[r]])
        assert np.array_equal(top_ids[r], np.argsort(-logits[r], kind="stable")[:20])
    exact = oracle(log_softmax, logits)
    assert_close(top_log_probs, np.take_along_axis(exact, top_ids.astype(int), -1))
    assert np.isnan(log_prob[2]) and rank[2] == 0, "no token could be drawn for this row"

"""Sampling by rows gives, row by row, the token that `sample_token` gives: under NumPy, and compiled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.model.padding import padded_rows
from reference.model.sample_rows import FEW, MANY, Stages, _last_kept, largest, rows_that_sample
from reference.serving.request import SamplingParams
from reference.serving.runner import UNUSABLE_LOGITS
from tests.reference.model.logits import NUM_TOKEN_IDS, VOCAB_SIZE, kinds, spread
from tests.reference.model.sampled_rows import ALL, Row, check, compiled, eight, sampling_of, with_numpy

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of +inf, to which NumPy objects


def random_rows(seed: int, size: int, num_token_ids: int, count: int) -> list[Row]:
    """Rows, of which some do not sample. Most parameters are most often off."""
    chance = random.Random(seed)

    def sometimes(values: Sequence[Any], otherwise: Any) -> Any:
        return chance.choice(values) if chance.random() < 0.3 else otherwise

    def ids(least: int, most: int) -> tuple[int, ...]:
        pool = (*range(6), num_token_ids - 1, *chance.choices(range(num_token_ids), k=6))
        return tuple(chance.choices(pool, k=chance.randint(least, most)))

    rows = []
    for _ in range(count):
        params = SamplingParams(
            temperature=chance.choice((0.0, 0.3, 1.0, 2.5, 1e300)),
            top_k=sometimes((1, 2, FEW - 1, FEW, FEW + 1, 200, MANY, MANY + 1, 2000, size - 1, size, 10**12), 0),
            top_p=sometimes((1e-30, 0.01, 0.4, 0.9, 0.999), 1.0),
            min_p=sometimes((0.01, 0.3, 1.0), 0.0),
            repetition_penalty=sometimes((0.5, 1.7, 1e300), 1.0),
            presence_penalty=sometimes((-2.0, 1.5), 0.0),
            frequency_penalty=sometimes((-1.0, 0.7), 0.0),
            logit_bias={token_id: chance.choice((-100.0, 3.5, 100.0)) for token_id in ids(0, 3)},
            allowed_token_ids=sometimes((ids(1, 6),), None),
            seed=chance.getrandbits(64),
        )
        output = ids(0, 8)
        rows.append(
            Row(
                chance.choice(kinds(size)),
                params,
                prompt=ids(1, 8),
                output=output,
                sample_index=chance.randint(0, 3),
                banned=tuple(set(ids(0, 3))),
                samples=chance.random() < 0.8,
                pending=bool(output) and chance.random() < 0.5,
            )
        )
    rows[0] = replace(rows[0], samples=True)
    return rows


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=120)
@given(SEEDS, st.integers(1, 6))
def test_any_rows_under_numpy(seed: int, count: int) -> None:
    check(random_rows(seed, 95, 90, count), with_numpy, num_token_ids=90)


@settings(max_examples=20)
@given(SEEDS)
def test_any_rows_of_a_larger_vocabulary_under_numpy(seed: int) -> None:
    check(random_rows(seed, VOCAB_SIZE, NUM_TOKEN_IDS, 3), with_numpy)


@pytest.mark.parametrize("candidates", [FEW, MANY, VOCAB_SIZE])
def test_any_rows_compiled_with_any_number_of_candidates(candidates: int) -> None:
    """Where the candidates are not enough, all logits are sorted: it may take longer, and gives the same."""
    for seed in range(20):
        rows = random_rows(seed, VOCAB_SIZE, NUM_TOKEN_IDS, 8)
        some = [replace(row, samples=number < 5 or row.samples) for number, row in enumerate(rows)]
        check(some, compiled, **ALL, candidates=candidates)


@settings(max_examples=50)
@given(SEEDS)
def test_padding_of_rows_changes_no_token(seed: int) -> None:
    rows = random_rows(seed, 95, 90, 5)
    sampling, seq_lens, previous = sampling_of(rows, 90)
    arrays, stages = rows_that_sample(sampling, seq_lens)
    logits = np.stack([row.logits for row in rows if row.samples])
    plain = with_numpy(logits, arrays, stages, previous, 90)
    padded = np.concatenate([logits, np.full((8 - len(logits), 95), np.nan, np.float32)])
    actual = with_numpy(padded, padded_rows(arrays, stages, 8), stages, previous, 90)
    np.testing.assert_array_equal(actual[: len(plain)], plain)
    assert (actual[len(plain) :] == UNUSABLE_LOGITS).all()


def test_what_no_row_uses_is_left_out() -> None:
    def stages(*rows: Row) -> Stages:
        sampling, seq_lens, _ = sampling_of(rows, NUM_TOKEN_IDS)
        return rows_that_sample(sampling, seq_lens)[1]

    def row(**params: Any) -> Row:
        return Row(spread(0), SamplingParams(**params))

    plain = Stages(adjusts=False, draws=True, limits=False, candidates=FEW)
    assert stages(row()) == plain
    assert stages(row(temperature=0.0, top_k=5, top_p=0.5)) == plain._replace(draws=False), "greedy needs no limits"
    assert stages(row(temperature=0.0), row()) == plain
    assert stages(row(top_k=FEW), row()) == plain._replace(limits=True)
    assert stages(row(top_k=FEW + 1), row()) == plain._replace(limits=True, candidates=MANY)
    assert stages(row(top_p=0.5)) == plain._replace(limits=True, candidates=MANY)
    for adjusting in ({"presence_penalty": 1.0}, {"logit_bias": {1: 1.0}}, {"allowed_token_ids": (1,)}):
        assert stages(row(**adjusting)) == plain._replace(adjusts=True)
    assert stages(replace(row(), banned=(1,))) == plain._replace(adjusts=True)
    silent = Row(spread(0), SamplingParams(top_p=0.5, logit_bias={1: 1.0}), banned=(1,), samples=False)
    assert stages(silent, row()) == plain, "a row that does not sample asks for nothing"


# The candidates


@settings(max_examples=300)
@given(
    logits=st.lists(st.sampled_from([-np.inf, -1.0, 0.0, -0.0, 1.0, 2.5, 4.0]), min_size=12, max_size=12),
    top_k=st.sampled_from([0, 1, 2, 3, 4, 5, 8, 11]),
    top_p=st.sampled_from([1e-30, 0.3, 0.7, 0.99, 1.0]),
    count=st.integers(1, 12),
)
def test_the_candidates_that_are_enough_tell_the_same_as_all(
    logits: list[float], top_k: int, top_p: float, count: int
) -> None:
    row = np.array([logits], np.float32)
    values, ids = largest(row, count=12)
    k, p = np.array([top_k], np.int32), np.array([top_p], np.float32)
    last, last_id, _ = _last_kept(row, values, ids, k, p)
    among, among_id, enough = _last_kept(row, values[:, :count], ids[:, :count], k, p)
    if enough[0]:
        assert (among[0], among_id[0]) == (last[0], last_id[0])
    num_kept = int((ids[0] == last_id[0]).argmax()) + 1
    # Not so careful that the answer is always no.
    assert enough[0] or (count < 12 and (top_k > count or num_kept >= count))


def test_the_check_sees_a_stage_that_is_left_out() -> None:
    """The negative control."""
    rows = eight({"top_k": 3}, lambda seed: spread(seed, 0.01))
    check(rows, with_numpy)
    with pytest.raises(AssertionError):
        check(rows, with_numpy, limits=False)

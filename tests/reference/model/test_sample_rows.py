"""Sampling by rows gives, row by row, the token that `sample_token` gives: under NumPy, and compiled."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.model.padding import bucket_rows, padded_rows
from reference.model.paged_runner import _compiled, _known
from reference.model.sample_rows import (
    FEW,
    MANY,
    SamplingRows,
    Stages,
    _last_kept,
    largest,
    rows_that_sample,
    sample_rows,
)
from reference.serving.request import SamplingParams
from reference.serving.runner import NOTHING_ALLOWED, UNUSABLE_LOGITS, Sampling
from reference.serving.sample import sample_token
from reference.serving.usable import UnusableLogits

VOCAB_SIZE = 3001  # more than MANY, and no multiple of 32
NUM_TOKEN_IDS = 2990  # the rest is padding
INT32_MAX = 2**31 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of +inf, to which NumPy objects


@dataclass(frozen=True)
class Row:
    """What one row of a batch samples from."""

    logits: np.ndarray  # f32 [V]
    params: SamplingParams = field(default_factory=SamplingParams)
    prompt: tuple[int, ...] = (1,)
    output: tuple[int, ...] = ()
    sample_index: int = 0
    banned: tuple[int, ...] = ()  # beside the padding of the vocabulary
    samples: bool = True
    pending: bool = False  # the last token of the output was sampled by the batch before


def expected(row: Row, num_token_ids: int) -> int:
    """The specification's token."""
    try:
        return sample_token(
            row.logits,
            row.prompt,
            row.output,
            row.params,
            sample_index=row.sample_index,
            banned_token_ids={*row.banned, *range(num_token_ids, len(row.logits))},
        )
    except UnusableLogits as error:
        return NOTHING_ALLOWED if "probability 0" in str(error) else UNUSABLE_LOGITS


def bits_of(token_ids: Sequence[int], num_token_ids: int) -> np.ndarray:  # u32 [W]
    words = np.zeros(-(-num_token_ids // 32), np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def sampling_of(rows: Sequence[Row], num_token_ids: int) -> tuple[Sampling, np.ndarray, np.ndarray]:
    """The rows as a batch has them, its `seq_lens`, and what the rows of the batch before sampled."""

    def column(name: str, dtype: type, largest: float) -> np.ndarray:
        return np.array([min(getattr(row.params, name), largest) for row in rows], dtype)

    def padded(lists: list[list[Any]], padding: Any, dtype: type) -> np.ndarray:
        width = max(map(len, lists), default=0)
        return np.array([[*one, *[padding] * (width - len(one))] for one in lists], dtype).reshape(len(rows), width)

    floats = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    previous = np.full(len(rows), 77, np.int32)
    history: list[int] = []
    start = [0]
    prompt_lens = []
    for number, row in enumerate(rows):
        before = len(rows) - 1 - number  # the row had another place in that batch
        tokens = [*row.prompt, *row.output]
        if row.pending:
            previous[before] = tokens[-1]
            tokens[-1] = -1 - before
        penalties = row.params.repetition_penalty, row.params.presence_penalty, row.params.frequency_penalty
        history += tokens if penalties != (1, 0, 0) else []
        prompt_lens.append(len(row.prompt))
        start.append(len(history))
    masked = [row.samples and row.params.allowed_token_ids is not None for row in rows]
    masks = [
        bits_of(row.params.allowed_token_ids or (), num_token_ids) for row, has in zip(rows, masked, strict=True) if has
    ]
    sampling = Sampling(
        samples=np.array([row.samples for row in rows]),
        **{name: column(name, np.float32, FLOAT32_MAX) for name in floats},
        top_k=column("top_k", np.int32, INT32_MAX),
        seed=np.array([[row.params.seed & 0xFFFFFFFF, row.params.seed >> 32] for row in rows], np.uint32),
        sample_index=np.array([row.sample_index for row in rows], np.int32),
        num_logprobs=np.full(len(rows), -1, np.int32),
        history=np.array(history, np.int32),
        history_start=np.array(start, np.int32),
        prompt_lens=np.array(prompt_lens, np.int32),
        bias_ids=padded([[*row.params.logit_bias.keys()] for row in rows], -1, np.int32),
        bias=padded([[*row.params.logit_bias.values()] for row in rows], 0, np.float32),
        banned_ids=padded([[*row.banned] for row in rows], -1, np.int32),
        mask=np.stack(masks) if masks else np.empty((0, -(-num_token_ids // 32)), np.uint32),
        mask_row=np.where(masked, np.cumsum(masked) - 1, -1).astype(np.int32),
    )
    seq_lens = np.array([len(row.prompt) + len(row.output) for row in rows], np.int32)
    return sampling, seq_lens, previous


Run = Callable[[np.ndarray, SamplingRows, Stages, np.ndarray, int], np.ndarray]


def with_numpy(
    logits: np.ndarray, rows: SamplingRows, stages: Stages, previous: np.ndarray, num_token_ids: int
) -> np.ndarray:
    """As `HistoryRunner` runs it: all logits are candidates."""
    history = np.where(rows.history < 0, previous[np.maximum(-1 - rows.history, 0)], rows.history)
    whole = stages._replace(candidates=logits.shape[1])
    return sample_rows(logits, rows._replace(history=history), whole, num_token_ids)


def compiled(
    logits: np.ndarray, rows: SamplingRows, stages: Stages, previous: np.ndarray, num_token_ids: int
) -> np.ndarray:
    """As `PagedRunner` runs it, on padded rows, the logits of which are NaN here."""
    num_rows = bucket_rows(len(logits))
    padded = np.full((num_rows, logits.shape[1]), np.nan, np.float32)
    padded[: len(logits)] = logits
    rows = _further_padded(padded_rows(rows, stages, num_rows), num_rows)
    rows = rows._replace(history=_compiled(_known, rows.history, previous))
    return np.asarray(sample_rows(padded, rows, stages, num_token_ids, run=_compiled))[: len(logits)]


def _further_padded(rows: SamplingRows, num_rows: int) -> SamplingRows:
    """To one shape whatever the rows are, so that each function is compiled once."""
    more = 256 - len(rows.history)
    return rows._replace(
        history=np.pad(rows.history, (0, more)),
        history_row=np.pad(rows.history_row, (0, more), constant_values=num_rows),
        history_is_prompt=np.pad(rows.history_is_prompt, (0, more)),
        mask=np.pad(rows.mask, ((0, num_rows - len(rows.mask)), (0, 0))),
    )


def check(rows: Sequence[Row], run: Run, num_token_ids: int = NUM_TOKEN_IDS, **stages: Any) -> None:
    """Each row that samples gives the specified token. stages: what is to differ from what the rows need."""
    sampling, seq_lens, previous = sampling_of(rows, num_token_ids)
    arrays, needed = rows_that_sample(sampling, seq_lens)
    logits = np.stack([row.logits for row in rows if row.samples])
    actual = run(logits, arrays, needed._replace(**stages), previous, num_token_ids)
    assert actual.dtype == np.int32
    assert actual.tolist() == [expected(row, num_token_ids) for row in rows if row.samples]


ALL = {"adjusts": True, "draws": True, "limits": True}  # one choice of stages, so that few things are compiled


# Logits of every kind


def spread(seed: int, scale: float = 3.0, size: int = VOCAB_SIZE) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def tied(seed: int, levels: int = 3, size: int = VOCAB_SIZE) -> np.ndarray:
    """A few values, zero of both signs among them: thousands of ties."""
    values = np.array([0.0, -0.0, *range(1, levels - 1)], np.float32)
    return np.random.default_rng(seed).choice(values, size)


def few_left(seed: int, left: int = 5, size: int = VOCAB_SIZE) -> np.ndarray:
    logits = np.full(size, -np.inf, np.float32)
    random = np.random.default_rng(seed)
    logits[random.choice(size, left, replace=False)] = random.standard_normal(left)
    return logits


def with_value(value: float, logits: np.ndarray, place: int = 17) -> np.ndarray:
    logits = logits.copy()
    logits[place] = value
    return logits


def padding_is_likeliest(seed: int, size: int = VOCAB_SIZE) -> np.ndarray:
    logits = spread(seed, size=size)
    logits[NUM_TOKEN_IDS if size == VOCAB_SIZE else size - 5 :] = 40.0
    return logits


@cache
def kinds(size: int) -> list[np.ndarray]:
    return [
        *(spread(seed, scale, size) for seed in range(3) for scale in (0.01, 3.0, 30.0)),
        *(tied(seed, levels, size) for seed in range(2) for levels in (2, 4)),
        np.zeros(size, np.float32),
        few_left(0, 5, size),
        few_left(1, 1, size),
        with_value(np.nan, spread(4, size=size)),
        padding_is_likeliest(7, size),
        with_value(np.inf, spread(5, size=size)),
        with_value(-np.inf, spread(6, size=size)),
        np.full(size, np.nan, np.float32),
        np.full(size, -np.inf, np.float32),
    ]


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


# Each way out of the chain, and each of its ends, by itself


def eight(params: dict[str, Any], logits: Callable[[int], np.ndarray], **row: Any) -> list[Row]:
    return [Row(logits(seed), SamplingParams(seed=seed, **params), **row) for seed in range(8)]


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


def test_the_check_sees_a_stage_that_is_left_out() -> None:
    """The negative control."""
    rows = eight({"top_k": 3}, lambda seed: spread(seed, 0.01))
    check(rows, with_numpy)
    with pytest.raises(AssertionError):
        check(rows, with_numpy, limits=False)

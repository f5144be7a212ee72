"""Each stage of sampling against plain Python and transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from parity.ulp import oracle, ulp_error
from reference.formats import Array
from reference.kernels.sampling import (
    add_logit_bias,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    mask_tokens,
    penalize,
)
from tests.reference.kernels.helpers import assert_same_bits, f32, normal

Run = Callable[..., Any]


def i32(*values: int) -> Array:
    return np.array(values, np.int32)


def kept(logits: Array) -> list[list[int]]:
    """Ids that are left, row by row."""
    return [np.flatnonzero(row > -np.inf).tolist() for row in logits]


# Values are few, so that ties are common, and -inf is among them.
ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 9)),
    elements=st.sampled_from([-np.inf, -1.5, -1.0, 0.0, 0.5, 0.5, 2.0]),
)


def falling_order(row: Array) -> list[int]:
    return sorted(range(row.size), key=lambda token_id: (-row[token_id], token_id))


def one_a_row(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, min_size=3, max_size=3)


# Penalties, bias, mask


def penalized(logits: Array, prompt_mask: Array, counts: Array, settings: Array) -> Array:
    repetition, presence, frequency = settings
    return penalize(logits, prompt_mask, counts, repetition=repetition, presence=presence, frequency=frequency)


def test_penalties_by_the_formula(run: Run) -> None:
    rng = np.random.default_rng(0)
    logits, prompt_mask = normal(0, 3, 50, scale=4), rng.random((3, 50)) < 0.3
    counts = np.where(rng.random((3, 50)) < 0.3, rng.integers(1, 6, (3, 50)), 0).astype(np.int32)
    repetition, presence, frequency = f32(1.3, 0.8, 1), f32(0.5, -2, 0), f32(1.5, -0.25, 0)
    exact = logits.astype(float)
    for r in range(3):
        for v in range(50):
            if prompt_mask[r, v] or counts[r, v]:
                exact[r, v] = (
                    exact[r, v] / float(repetition[r]) if exact[r, v] > 0 else exact[r, v] * float(repetition[r])
                )
            exact[r, v] -= float(frequency[r]) * counts[r, v] + float(presence[r]) * (counts[r, v] > 0)
    actual = run(penalized, logits, prompt_mask, counts, np.stack([repetition, presence, frequency]))
    assert actual.dtype == np.float32
    assert ulp_error(actual, exact) < 8
    assert_same_bits(actual[2], logits[2])


def test_prompt_tokens_get_no_presence_or_frequency_penalty(run: Run) -> None:
    logits, everything, nothing = normal(0, 1, 9), np.ones((1, 9), np.bool_), np.zeros((1, 9), np.int32)
    assert_same_bits(run(penalized, logits, everything, nothing, f32(1, 2, 2)[:, None]), logits)


def test_repetition_is_transformers(run: Run) -> None:
    logits, prompt = normal(0, 2, 40, scale=3), np.array([[3, 3, 9], [0, 39, 5]])
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.from_numpy(prompt), torch.from_numpy(logits.copy()))
    mask = np.zeros((2, 40), np.bool_)
    np.put_along_axis(mask, prompt, True, axis=-1)
    actual = run(
        penalized, logits, mask, np.zeros((2, 40), np.int32), np.array([[1.7] * 2, [0, 0], [0, 0]], np.float32)
    )
    assert ulp_error(actual, expected.numpy().astype(np.float64)) <= 1
    assert not np.allclose(actual, logits)


@pytest.mark.parametrize("repetition", [1e-45, 1e-30, 1e30])
def test_no_penalty_makes_a_row_unusable(run: Run, repetition: float) -> None:
    logits, everything = f32(20, -20, 0, -np.inf)[None], np.ones((1, 4), np.bool_)
    actual = run(penalized, logits, everything, np.full((1, 4), 9, np.int32), f32(repetition, 2, 2)[:, None])
    assert np.all(np.isfinite(actual[0, :3])) and actual[0, 3] == -np.inf


def test_bias_is_added_where_it_is_asked_for(run: Run) -> None:
    logits = normal(0, 3, 6)
    logits[1, 2] = -np.inf
    actual = run(
        add_logit_bias, logits, np.array([[0, 5], [2, -1], [-1, -1]], np.int32), np.full((3, 2), 7, np.float32)
    )
    expected = logits.copy()
    expected[0, [0, 5]] += 7
    assert_same_bits(actual, expected)


def test_no_bias_at_all(run: Run) -> None:
    logits = normal(0, 2, 6)
    assert_same_bits(run(add_logit_bias, logits, np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32)), logits)


def test_mask(run: Run) -> None:
    logits, allowed = normal(0, 2, 5), np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], np.bool_)
    assert_same_bits(run(mask_tokens, logits, allowed), np.where(allowed, logits, np.float32(-np.inf)))


# Temperature


def test_temperature_divides(run: Run) -> None:
    logits = normal(0, 3, 40)
    actual = run(apply_temperature, logits, f32(0.7, 0, 3))
    assert_same_bits(actual[1], logits[1])
    assert ulp_error(actual[::2], oracle(apply_temperature, logits, f32(0.7, 0, 3))[::2]) <= 1
    expected = TemperatureLogitsWarper(3.0)(None, torch.from_numpy(logits)).numpy()
    assert ulp_error(actual[2:], expected[2:].astype(np.float64)) <= 1


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-7, 3e38])
def test_no_temperature_overflows(run: Run, temperature: float) -> None:
    actual = run(apply_temperature, f32(50, 49.9, -50, 0, -np.inf)[None], f32(temperature))
    assert np.all(np.isfinite(actual[:, :4])) and actual[0, 0] >= actual[0, 1] >= actual[0, 3] >= actual[0, 2]
    assert actual[0, 4] == -np.inf


# Top-k, top-p, min-p


@given(ROWS, one_a_row(st.integers(0, 11)))
@settings(deadline=None)
def test_top_k_keeps_exactly_k_the_lower_ids_of_a_tie(logits: Array, k: list[int]) -> None:
    actual = keep_top_k(logits, i32(*k[: len(logits)]))
    for row, count, left in zip(logits, k, actual, strict=False):
        falling = falling_order(row)
        expected = np.full_like(row, -np.inf)
        chosen = falling[:count] if count else falling
        expected[chosen] = row[chosen]
        assert_same_bits(left, expected)


@given(ROWS, one_a_row(st.sampled_from([0.01, 0.3, 0.5, 0.77, 0.999, 1.0])))
@settings(deadline=None)
def test_top_p_keeps_the_shortest_prefix_that_reaches_p(logits: Array, p: list[float]) -> None:
    actual = keep_top_p(logits, f32(*p[: len(logits)]))
    for row, target, left in zip(logits.astype(float), p, actual, strict=False):
        if not np.any(row > -np.inf):
            assert not np.any(left > -np.inf)
            continue
        probability = np.exp(row - row.max())
        probability /= probability.sum()
        falling = falling_order(row)
        sums = np.cumsum(probability[falling])
        if np.min(np.abs(sums - target)) < 1e-5 and target < 1:
            continue  # float32 may fall either way
        size = row.size if target == 1 else int(np.searchsorted(sums, target)) + 1
        assert kept(left[None]) == [sorted(v for v in falling[:size] if row[v] > -np.inf)]


@given(ROWS, one_a_row(st.sampled_from([0.0, 0.05, 0.2, 0.7, 1.0])))
@settings(deadline=None)
def test_min_p_keeps_what_has_that_share_of_the_likeliest(logits: Array, p: list[float]) -> None:
    actual = keep_min_p(logits, f32(*p[: len(logits)]))
    for row, share, left in zip(logits.astype(float), p, actual, strict=False):
        expected = [v for v in range(row.size) if row[v] > -np.inf and np.exp(row[v] - row.max()) >= share - 1e-6]
        assert kept(left[None]) == [expected]


@pytest.mark.parametrize(
    ("stage", "setting", "warper"),
    [
        (keep_top_k, i32(5), TopKLogitsWarper(5)),
        (keep_top_p, f32(0.6), TopPLogitsWarper(0.6)),
        (keep_top_p, f32(0.001), TopPLogitsWarper(0.001)),
        (keep_min_p, f32(0.1), MinPLogitsWarper(0.1)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_transformers_keeps_the_same(run: Run, stage: Callable[..., Array], setting: Array, warper: Any) -> None:
    logits = normal(4, 20, 300, scale=2)
    expected = warper(None, torch.from_numpy(logits.copy())).numpy()
    actual = run(stage, logits, np.repeat(setting, 20))
    assert_same_bits(actual, expected)
    assert 0 < np.isfinite(actual).sum() < logits.size


def test_top_p_is_of_what_top_k_left(run: Run) -> None:
    logits = np.log(f32(0.4, 0.3, 0.2, 0.1))[None]
    assert kept(run(keep_top_p, logits, f32(0.5))) == [[0, 1]]
    assert kept(run(keep_top_p, run(keep_top_k, logits, i32(2)), f32(0.5))) == [[0]], "0.4 / 0.7 > 0.5"


def test_top_p_too_small_for_float32_still_keeps_the_first(run: Run) -> None:
    assert kept(run(keep_top_p, f32(0.5, 2.0, 2.0)[None], f32(1e-300))) == [[1]]


def test_top_p_1_keeps_what_float32_sums_would_lose(run: Run) -> None:
    logits = np.array([[0.0] + [-18.0] * 9], np.float32)  # each has probability 1.5e-8, under 2^-24
    assert kept(run(keep_top_p, logits, f32(1))) == [list(range(10))]


def test_filters_leave_nan_where_it_is(run: Run) -> None:
    logits = normal(0, 1, 8)
    logits[0, 6] = np.nan
    with np.errstate(invalid="ignore"):
        for stage, setting in ((keep_top_k, i32(2)), (keep_top_p, f32(0.1)), (keep_min_p, f32(0.9))):
            assert np.isnan(run(stage, logits, setting)[0, 6])
    assert np.isnan(run(mask_tokens, logits, np.zeros((1, 8), np.bool_))[0, 6])

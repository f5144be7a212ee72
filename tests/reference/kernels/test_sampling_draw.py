"""The draw, and the chain before it: the law of the tokens, on both backends, in any company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reference.formats import Array
from reference.kernels.sampling import (
    add_logit_bias,
    apply_temperature,
    draw,
    is_usable,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    mask_tokens,
    penalize,
)
from tests.reference.kernels.helpers import assert_same_bits, f32, normal, run_jax, run_numpy

Run = Callable[..., Any]


def seeds(*values: int) -> Array:
    return np.array([[value & 0xFFFFFFFF, value >> 32] for value in values], np.uint32)


@pytest.mark.parametrize("over", ["positions", "seeds", "samples"])
def test_draws_follow_the_softmax(over: str) -> None:
    """Chi-square over 20,000 draws, for every word of the counter and key that may vary; and it can fail."""
    count, logits = 20_000, np.array([0.0, 1.0, 2.0, -1.0, 0.5, 0.0, 1.5], np.float32)
    varying, fixed = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    tokens = draw(
        np.repeat(logits[None], count, axis=0),
        np.ones(count, np.float32),
        seeds(*(range(count) if over == "seeds" else [99] * count)),
        varying if over == "positions" else fixed,
        varying if over == "samples" else fixed,
    )
    counts = np.bincount(tokens, minlength=7)

    def chi_square(probability: Array) -> float:
        return float(np.sum((counts - count * probability) ** 2 / (count * probability)))

    probability = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    assert chi_square(probability) < 22.5, "the 99.9 % point of chi-square with 6 degrees of freedom"
    wrong = np.exp(1.05 * logits.astype(float))
    assert chi_square(wrong / wrong.sum()) > 22.5, "a temperature 5 % off is seen"


def test_greedy_ties_masks_and_rows_that_cannot_be_drawn_from(run: Run) -> None:
    inf, nan = np.inf, np.nan
    logits = np.array(
        [
            [1, 3, 3, -inf],  # greedy: the lower id of the largest; else never the last
            [-inf, 0, -inf, -inf],  # one token is left
            [-inf, -inf, -inf, -inf],  # none is
            [0, 0, nan, 0],
            [0, 0, inf, 0],
        ],
        np.float32,
    )
    count = 60
    temperature = np.repeat(f32(0, 1), count * 5)
    tokens = run(
        draw,
        np.tile(logits, (2 * count, 1)),
        temperature,
        np.repeat(seeds(12345), temperature.size, axis=0),
        np.arange(temperature.size, dtype=np.int32),
        np.zeros(temperature.size, np.int32),
    )
    assert tokens.dtype == np.int32
    assert run(is_usable, logits).tolist() == [True, True, False, False, False]
    greedy, drawn = tokens.reshape(2, count, 5)
    assert np.all(greedy == [1, 1, -1, -1, -1])
    assert set(drawn[:, 0].tolist()) == {0, 1, 2}
    assert np.all(drawn[:, 1:] == [1, -1, -1, -1])


def test_one_nan_is_seen_in_rows_of_any_shape(run: Run) -> None:
    """XLA's max on a CPU passes over a NaN where rows are several and long."""
    for shape in ((1, 8), (6, 3001), (8, 4096)):
        logits = normal(0, *shape)
        logits[-1, shape[1] // 2] = np.nan
        assert run(is_usable, logits).tolist() == [True] * (shape[0] - 1) + [False]


def chain(logits: Array, *settings: Array) -> tuple[Array, Array]:
    prompt_mask, counts, bias_ids, bias, allowed, *rest = settings
    repetition, presence, frequency, temperature, k, p, min_p, seed, position, sample = rest
    logits = penalize(logits, prompt_mask, counts, repetition=repetition, presence=presence, frequency=frequency)
    logits = mask_tokens(add_logit_bias(logits, bias_ids, bias), allowed)
    logits = keep_top_k(apply_temperature(logits, temperature), k)
    logits = keep_min_p(keep_top_p(logits, p), min_p)
    return logits, draw(logits, temperature, seed, position, sample)


def chain_inputs(rows: int, vocab_size: int) -> list[Array]:
    """Settings of every kind; a request is one row of each array."""
    rng = np.random.default_rng(rows)
    pick = lambda *values: np.resize(np.array(values), rows)  # noqa: E731
    return [
        normal(1, rows, vocab_size, scale=3),
        rng.random((rows, vocab_size)) < 0.1,
        (rng.random((rows, vocab_size)) < 0.1).astype(np.int32) * 2,
        np.argsort(rng.random((rows, vocab_size)), axis=-1)[:, :3].astype(np.int32),
        normal(2, rows, 3),
        rng.random((rows, vocab_size)) < 0.9,
        *(pick(1, 1.2, 0.9).astype(np.float32), pick(0, 1).astype(np.float32), pick(0, 0, 0.5).astype(np.float32)),
        pick(1, 0, 0.7, 1.3).astype(np.float32),
        pick(0, 50, 3).astype(np.int32),
        pick(1, 0.9, 0.5, 0.99).astype(np.float32),
        pick(0, 0.02).astype(np.float32),
        seeds(*rng.integers(0, 2**63, rows).tolist()),
        rng.integers(0, 1000, rows).astype(np.int32),
        rng.integers(0, 4, rows).astype(np.int32),
    ]


@pytest.mark.parametrize(("rows", "vocab_size"), [(12, 151), (4, 151_936)])
def test_numpy_and_jax_draw_the_same_tokens(rows: int, vocab_size: int) -> None:
    inputs = chain_inputs(rows, vocab_size)
    logits, tokens = run_numpy(chain, *inputs)
    jax_logits, jax_tokens = run_jax(chain, *inputs)
    assert np.array_equal(tokens, jax_tokens)
    finite = np.isfinite(logits) & np.isfinite(jax_logits)
    assert np.allclose(logits[finite], jax_logits[finite], rtol=1e-6, atol=1e-6)
    # A top-p sum that comes within rounding of p may fall either way: one token a row at most.
    assert np.max(np.sum(np.isfinite(logits) != np.isfinite(jax_logits), axis=-1)) <= 1
    assert len(set(tokens.tolist())) > rows // 2


def test_a_draw_is_the_same_in_any_batch() -> None:
    inputs = chain_inputs(12, 151)
    logits, tokens = chain(*inputs)
    shuffled = np.random.default_rng(0).permutation(12)
    assert np.array_equal(chain(*(array[shuffled] for array in inputs))[1], tokens[shuffled])
    for r in range(12):
        alone = chain(*(array[r : r + 1] for array in inputs))
        assert_same_bits(alone[0][0], logits[r])
        assert alone[1][0] == tokens[r]


def test_inputs_are_left_as_they_were() -> None:
    inputs = chain_inputs(3, 20)
    before = [array.copy() for array in inputs]
    chain(*inputs)
    for array, copy in zip(inputs, before, strict=True):
        assert_same_bits(array, copy)

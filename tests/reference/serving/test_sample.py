"""The chain in its stated order, from a request's parameters to a token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from reference.formats import Array
from reference.kernels.philox import gumbel
from reference.serving.request import SamplingParams
from reference.serving.sample import sample_token
from reference.serving.usable import UnusableLogits

LOGITS = np.random.default_rng(0).standard_normal(50).astype(np.float32) * 3
PROMPT, OUTPUT = (3, 4, 4), (5, 5, 6)


def sample(
    logits: Array = LOGITS,
    prompt: Sequence[int] = PROMPT,
    output: Sequence[int] = OUTPUT,
    sample_index: int = 0,
    banned: Collection[int] = (),
    **params: Any,
) -> int:
    return sample_token(
        logits, prompt, output, SamplingParams(**params), sample_index=sample_index, banned_token_ids=banned
    )


def support(count: int = 200, **arguments: Any) -> set[int]:
    """What is drawn over that many seeds."""
    return {sample(seed=seed, **arguments) for seed in range(count)}


def test_greedy_takes_the_largest_and_the_lower_id_on_a_tie() -> None:
    assert sample(temperature=0) == int(np.argmax(LOGITS))
    assert sample(np.array([0, 2, 2, 1], np.float32), (0,), (), temperature=0) == 1
    assert sample(temperature=0, seed=1, top_k=3, top_p=0.2, min_p=0.5) == int(np.argmax(LOGITS))


@given(
    st.integers(0, 2**64 - 1),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.3, 1.0, 1.7]),
            "top_k": st.sampled_from([1, 7, 50, 10**12]),
            "top_p": st.sampled_from([0.4, 0.9]),
            "min_p": st.sampled_from([0.01, 0.2]),
            "repetition_penalty": st.sampled_from([0.7, 1.4]),
        }
    ),
)
@settings(deadline=None, max_examples=40)
def test_the_token_is_transformers_chain_and_the_largest_after_the_noise(seed: int, params: dict[str, Any]) -> None:
    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]),
            TemperatureLogitsWarper(params["temperature"]),
            TopKLogitsWarper(min(params["top_k"], 50)),
            TopPLogitsWarper(params["top_p"]),
            MinPLogitsWarper(params["min_p"]),
        ]
    )
    logits = processors(torch.LongTensor([[*PROMPT, *OUTPUT]]), torch.from_numpy(LOGITS[None].copy())).numpy()
    words, position = np.array([[seed & 0xFFFFFFFF, seed >> 32]], np.uint32), np.array([6], np.int32)
    noise = gumbel(words, position, np.array([2], np.int32), 50)
    assert sample(sample_index=2, seed=seed, **params) == int(np.argmax(logits + noise))


def test_penalties_come_before_the_bias_and_the_bias_before_the_temperature() -> None:
    """Token 5 was sampled twice, 3 is in the prompt: ((6 / 2) - 2 x 1.25 - 0.5) + 0.9 = 0.9 for 5; 4 / 2 = 2 for 3."""
    logits = np.full(8, -50, np.float32)
    logits[[5, 3, 0]] = 6, 4, 0.5
    params: dict[str, Any] = {
        "repetition_penalty": 2,
        "frequency_penalty": 1.25,
        "presence_penalty": 0.5,
        "logit_bias": {5: 0.9},
    }
    order = []
    banned: set[int] = set()
    for _ in range(3):
        order.append(sample(logits, temperature=0, banned=banned, **params))
        banned.add(order[-1])
    assert order == [3, 5, 0]
    drawn = [sample(logits, seed=seed, temperature=0.2, banned={3}, **params) for seed in range(600)]
    # At temperature 0.2, logits 0.9 and 0.5 are 4.5 and 2.5: 5 has probability 1 / (1 + e^-2) = 0.881.
    assert abs(drawn.count(5) / 600 - 0.881) < 0.05


def test_only_the_output_counts_for_presence_and_frequency() -> None:
    logits = np.array([1, 1.5, 0], np.float32)
    assert sample(logits, (1, 1), (), temperature=0, presence_penalty=2, frequency_penalty=2) == 1
    assert sample(logits, (0,), (1,), temperature=0, presence_penalty=2) == 0
    assert sample(logits, (1,), (), temperature=0, repetition_penalty=2) == 0


def test_bias_cannot_bring_back_what_is_not_allowed() -> None:
    assert support(allowed_token_ids=(1, 2, 9), logit_bias={30: 100.0}) <= {1, 2, 9}
    assert support(banned=range(2, 50)) == {0, 1}
    assert support(allowed_token_ids=(1, 2, 9), banned={2, 9}) == {1}


def test_top_k_is_of_what_is_allowed() -> None:
    falling = np.argsort(-LOGITS)
    assert support(top_k=2, banned=falling[:3].tolist()) == set(falling[3:5].tolist())


def test_seed_sample_and_position_each_make_another_draw() -> None:
    flat = np.zeros(50, np.float32)
    base = [sample(flat, seed=seed) for seed in range(30)]
    assert base == [sample(flat, seed=seed) for seed in range(30)]
    for other in (
        [sample(flat, seed=seed + (1 << 40)) for seed in range(30)],
        [sample(flat, seed=seed, sample_index=1) for seed in range(30)],
        [sample(flat, seed=seed, output=(*OUTPUT, 7)) for seed in range(30)],
    ):
        assert sum(a == b for a, b in zip(base, other, strict=True)) < 8


def test_a_draw_depends_on_where_it_stands_and_not_on_what_is_output() -> None:
    flat = np.zeros(50, np.float32)
    assert sample(flat, (1, 2, 3), (4,), seed=5) == sample(flat, (1,), (2, 3, 4), seed=5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_unusable_logits_are_an_error_that_names_the_position(value: float) -> None:
    logits = LOGITS.copy()
    logits[7] = value
    for banned in ((), (7,)):
        with pytest.raises(UnusableLogits, match="position 6 hold NaN"):
            sample(logits, banned=banned)
    with pytest.raises(UnusableLogits, match="position 6 hold NaN"):
        sample(np.full(50, -np.inf, np.float32))


def test_nothing_left_is_an_error() -> None:
    logits = np.where(np.arange(50) == 9, np.float32(-np.inf), LOGITS)
    with pytest.raises(UnusableLogits, match="probability 0"):
        sample(logits, allowed_token_ids=(9,))
    with pytest.raises(UnusableLogits, match="probability 0"):
        sample(banned=range(50))


@pytest.mark.parametrize("extreme", [{"temperature": 1e-300}, {"temperature": 1e300}, {"repetition_penalty": 1e-300}])
def test_extreme_settings_still_give_a_token(extreme: dict[str, Any]) -> None:
    assert 0 <= sample(**extreme) < 50


def test_a_vocabulary_of_the_largest_size() -> None:
    logits = np.zeros(151_936, np.float32)
    logits[151_668] = 25.0
    banned = range(151_669, 151_936)
    assert sample(logits, seed=2**64 - 1, top_k=20, top_p=0.95, temperature=0.6, banned=banned) == 151_668

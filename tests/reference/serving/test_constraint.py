"""An answer under a constraint: always in its language, and otherwise sampled as ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.serving.generate import generate
from reference.serving.request import FinishReason, RequestError, RequestOutput, SamplingParams
from reference.serving.sample import allowed_by
from tests.reference.serving.automaton import Anything, Automaton, automata, sequence
from tests.reference.serving.fakes import (
    ABC,
    END_OF_TURN,
    EOS,
    NUM_TOKEN_IDS,
    VOCAB_SIZE,
    HistoryModel,
    ScriptedModel,
    ids_of,
    request,
    served,
    text_of,
    tokens_of,
)

A, B, C = 65, 66, 67


def outputs_of(prompt: Sequence[int] = (7,), index: int = 0, **params: Any) -> list[RequestOutput]:
    return list(generate(request(prompt=prompt, **params), index, served(HistoryModel())))


@given(
    automata(),
    st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**64 - 1),
            "temperature": st.sampled_from([0.0, 1.0, 5.0]),
            "top_k": st.sampled_from([0, 1, 3]),
            "top_p": st.sampled_from([0.5, 1.0]),
            "frequency_penalty": st.sampled_from([0.0, 2.0]),
            "logit_bias": st.sampled_from([{}, {EOS: -5.0, C: 100.0}]),
            "max_tokens": st.sampled_from([3, 20]),
        }
    ),
    st.integers(0, 3),
)
@settings(max_examples=60)
def test_every_finished_answer_is_in_the_language(
    automaton: Automaton, params: dict[str, Any], sample_index: int
) -> None:
    outputs = outputs_of(index=sample_index, constraint=automaton, **params)
    tokens = tokens_of(outputs)
    if outputs[-1].finish_reason is FinishReason.STOP:
        assert automaton.holds(tokens)
    else:
        assert outputs[-1].finish_reason is FinishReason.LENGTH and len(tokens) == params["max_tokens"]
        state = automaton.begin()
        for token_id in tokens:
            state.accept(token_id)


def test_without_the_constraint_the_same_answer_is_not_in_the_language() -> None:
    automaton = sequence(A, B, C)
    free, bound = outputs_of(max_tokens=4), outputs_of(max_tokens=4, constraint=automaton)
    assert not automaton.holds(tokens_of(free)) and automaton.holds(tokens_of(bound))
    assert text_of(bound) == "ABC" and bound[-1].finish_reason is FinishReason.STOP


@given(st.integers(0, 2**64 - 1))
@settings(max_examples=20)
def test_a_constraint_that_allows_all_changes_nothing(seed: int) -> None:
    everything = Automaton([dict.fromkeys(range(NUM_TOKEN_IDS), 0)], {0}, eos_token_ids=())
    alone = outputs_of(seed=seed, max_tokens=5)
    assert outputs_of(seed=seed, max_tokens=5, constraint=Anything()) == alone
    assert outputs_of(seed=seed, max_tokens=5, constraint=everything) == alone


def test_padding_of_the_vocabulary_stays_banned_whatever_a_constraint_says() -> None:
    """Every bit of the last word is set, the ones past the last token id too."""
    careless = Automaton([dict.fromkeys(range(32 * -(-NUM_TOKEN_IDS // 32)), 0)], set())
    tokens = [t for i in range(5) for t in tokens_of(outputs_of(index=i, constraint=careless, max_tokens=30))]
    assert max(tokens) < NUM_TOKEN_IDS


def test_the_end_is_sampled_only_where_the_answer_may_end() -> None:
    """The model would end at once, and may only after the B; there it goes on, since it must not end."""
    ends_after_b = Automaton([{A: 1}, {B: 2}, {B: 2}], {2})
    outputs = list(
        generate(request(temperature=0.0, constraint=ends_after_b), 0, served(ScriptedModel([EOS, EOS, B, EOS])))
    )
    assert tokens_of(outputs) == [A, B, B, EOS] and outputs[-1].finish_reason is FinishReason.STOP


def test_where_an_answer_must_end_it_does() -> None:
    outputs = list(generate(request(temperature=0.0, constraint=sequence(A)), 0, served(ScriptedModel([A, A, A, A]))))
    assert tokens_of(outputs) == [A, EOS]


def test_any_end_of_sequence_id_may_end_it() -> None:
    either = Automaton([{A: 1}, {}], {1}, eos_token_ids=(EOS, END_OF_TURN))
    allowed = np.flatnonzero(allowed_by(either, [A], VOCAB_SIZE))
    assert allowed.tolist() == [EOS, END_OF_TURN]


def test_stop_strings_and_the_budget_still_end_it() -> None:
    answer = sequence(*ids_of("AB"), ABC)
    assert text_of(outputs_of(constraint=answer, stop=("BA",))) == "A"
    assert outputs_of(constraint=answer, max_tokens=2)[-1].finish_reason is FinishReason.LENGTH
    assert tokens_of(outputs_of(constraint=answer, stop_token_ids=(B,))) == [A, B]


def test_it_is_anded_with_the_allowed_ids() -> None:
    either = Automaton([{A: 1, B: 1, C: 1}, {}], {1})
    drawn = {tokens_of(outputs_of(constraint=either, seed=s, allowed_token_ids=(B, C, EOS, 3)))[0] for s in range(40)}
    assert drawn == {B, C}


@pytest.mark.parametrize(
    ("constraint", "params"),
    [
        (sequence(A, B), {"allowed_token_ids": (A, C)}),
        (Automaton([{A: 1}, {}], set()), {}),  # it gives up after the A
    ],
)
def test_nothing_left_ends_the_sample_with_an_error(constraint: Automaton, params: dict[str, Any]) -> None:
    outputs = outputs_of(constraint=constraint, **params)
    assert text_of(outputs) == "A" and tokens_of(outputs) == [A]
    assert outputs[-1].finish_reason is FinishReason.ERROR and outputs[-1].error is not None
    assert "every token that may be sampled at position 2 has probability 0" in outputs[-1].error


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    model = HistoryModel()
    (first, *_) = generate(request(constraint=sequence(A), logprobs=2), 0, served(model))
    assert first.logprobs is not None
    top = np.argsort(-model.last_logits((7,)))[:2]
    assert [token_id for token_id, _ in first.logprobs[0].top] == top.tolist() != [A]


@pytest.mark.parametrize(
    ("param", "params"), [("ignore_eos", {"ignore_eos": True}), ("min_tokens", {"min_tokens": 1, "max_tokens": 3})]
)
def test_what_cannot_work_with_a_constraint_is_refused(param: str, params: dict[str, Any]) -> None:
    SamplingParams(**params)
    with pytest.raises(RequestError, match="ends where") as refused:
        SamplingParams(constraint=sequence(A), **params)
    assert refused.value.param == param


@given(automata(), st.lists(st.integers(0, NUM_TOKEN_IDS - 1), max_size=5))
def test_the_mask_is_what_the_state_says_bit_by_bit(automaton: Automaton, tried: list[int]) -> None:
    """And a token that is not allowed is refused, and changes nothing."""
    state, taken = automaton.begin(), list[int]()
    for token_id in tried:
        before = state.next_ids()
        if token_id in before:
            state.accept(token_id)
            taken.append(token_id)
        else:
            with pytest.raises(ValueError, match="not allowed"):
                state.accept(token_id)
            assert state.next_ids() == before
    mask = allowed_by(automaton, taken, VOCAB_SIZE)
    assert mask.shape == (1, VOCAB_SIZE) and set(np.flatnonzero(mask).tolist()) == state.next_ids()
    outside = next(i for i in range(NUM_TOKEN_IDS) if i not in state.next_ids())
    with pytest.raises(ValueError, match="not allowed"):
        allowed_by(automaton, [*taken, outside], VOCAB_SIZE)

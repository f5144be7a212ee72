"""What a state of a compiled grammar promises."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarCompiler
from engine.tokenizer import Tokenizer
from tests.engine.grammar.walking import accept_all, allowed_ids

pytestmark = pytest.mark.usefixtures("untried")


def test_the_mask_has_a_bit_for_each_id_and_none_beyond(
    small_compiler: GrammarCompiler, small_tokenizer: Tokenizer
) -> None:
    state = small_compiler.regex(r"(?s).*").begin()
    words = state.allowed()
    assert words.shape == (-(-small_tokenizer.num_token_ids // 32),) == (9,)
    valid = {i for i in range(261) if small_tokenizer.id_to_bytes(i) < b"\x80" or i > 255}
    assert valid | set(small_compiler.eos_token_ids) <= allowed_ids(state)
    assert max(allowed_ids(state)) < small_tokenizer.num_token_ids


def test_it_is_computed_once_and_cannot_be_written_to(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = compiler.json_object().begin()
    first = state.allowed()
    assert state.allowed() is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    state.accept(tokenizer.encode("{")[0])
    assert state.allowed() is not first


@given(token_ids=st.lists(st.integers(-5, 4200), max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_not_allowed_is_refused_and_changes_nothing(
    compiler: GrammarCompiler, tokenizer: Tokenizer, token_ids: list[int]
) -> None:
    state = accept_all(compiler.json_schema({"type": "integer"}).begin(), tokenizer.encode("-1"))
    before = allowed_ids(state)
    for token_id in set(token_ids) - before:
        with pytest.raises(ValueError, match=f"token {token_id} is not allowed"):
            state.accept(token_id)
    assert allowed_ids(state) == before
    state.accept(tokenizer.encode("7")[0])


def test_all_end_of_sequence_ids_or_none(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    ends = set(compiler.eos_token_ids)
    assert len(ends) == 2
    for end in ends:
        state = compiler.json_schema({"type": "integer"}).begin()
        assert not allowed_ids(state) & ends
        state.accept(tokenizer.encode("7")[0])
        assert ends < allowed_ids(state), "it may end, or go on"
        state.accept(end)
        assert allowed_ids(state) == ends


def test_where_an_answer_must_end_only_the_end_is_allowed(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = accept_all(compiler.json_object().begin(), tokenizer.encode('{"a": 1}'))
    assert allowed_ids(state) == set(compiler.eos_token_ids)


def test_states_are_independent(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.choice(["ab", "cd"])
    one, other = grammar.begin(), grammar.begin()
    before = allowed_ids(other)
    accept_all(one, tokenizer.encode("ab"))
    assert allowed_ids(one) == set(compiler.eos_token_ids)
    assert allowed_ids(other) == allowed_ids(grammar.begin()) == before


def test_a_language_that_gets_too_complex_allows_nothing_more(
    compiler: GrammarCompiler, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """The library alone would end the answer, as if it were whole."""
    state = compiler.regex(r"((a{0,100}){0,100}){0,100}b").begin()
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            if not allowed_ids(state):
                break
            state.accept(tokenizer.encode("a")[0])
    assert not allowed_ids(state) and "gives up" in caplog.text
    with pytest.raises(ValueError, match="not allowed"):
        state.accept(compiler.eos_token_ids[0])

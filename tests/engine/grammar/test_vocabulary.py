"""The library's tokens are the tokenizer's, and a special token is never text."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarCompiler
from engine.grammar.vocabulary import Vocabulary
from engine.tokenizer import Tokenizer
from tests.engine.grammar.conftest import compiler_of
from tests.engine.grammar.walking import accept_all, allowed_ids, holds

pytestmark = pytest.mark.usefixtures("untried")


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, [tokenizer.added_tokens["<|im_end|>"]], tokenizer.num_token_ids)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return vocabulary_of(tokenizer)


def check_bytes(tokenizer: Tokenizer) -> None:
    """Of every id. But for the byte that begins no character, which the library marks special tokens with."""
    library = vocabulary_of(tokenizer).library
    assert library.vocab_size == tokenizer.num_token_ids
    for token_id in range(tokenizer.num_token_ids):
        expected = tokenizer.id_to_bytes(token_id)
        assert library.decode_bytes([token_id]) == (b"" if expected == b"\xff" else expected)
        assert library.is_special_token(token_id) == (
            token_id in tokenizer.added_tokens.values() or expected == b"\xff"
        )


def test_the_bytes_of_every_token(tokenizer: Tokenizer, small_tokenizer: Tokenizer) -> None:
    check_bytes(tokenizer)
    check_bytes(small_tokenizer)


@pytest.mark.network
def test_the_bytes_of_every_token_of_qwen3(qwen3_tokenizer: Tokenizer) -> None:
    check_bytes(qwen3_tokenizer)


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@given(
    text=st.lists(st.sampled_from(["<think>", "<|im_end|>", "e\u0301", "the ", "😀"]) | TEXT, max_size=4).map("".join)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_text_that_is_forced_is_written_without_special_tokens(
    vocabulary: Vocabulary, tokenizer: Tokenizer, text: str
) -> None:
    token_ids = vocabulary(text)
    assert b"".join(map(tokenizer.id_to_bytes, token_ids)) == text.encode()
    assert not set(tokenizer.added_tokens.values()) & set(token_ids)


@pytest.mark.parametrize("so_far", ['{"', '{"a', '{"a": "', '{"a": "x', '{"a": "\\'])
def test_no_string_holds_a_special_token(compiler: GrammarCompiler, tokenizer: Tokenizer, so_far: str) -> None:
    state = accept_all(compiler.json_object().begin(), tokenizer.encode(so_far))
    assert not allowed_ids(state) & set(tokenizer.added_tokens.values())


def test_a_string_may_spell_a_special_token(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    text = json.dumps("<think>x<|im_end|>")
    spelled = [i for part in ('"<', "think>x<", '|im_end|>"') for i in tokenizer.encode(part)]
    eos = compiler.eos_token_ids[0]
    assert tokenizer.decode(spelled, skip_special_tokens=False) == text
    assert holds(compiler.json_schema({"type": "string"}), spelled, eos)
    assert not holds(compiler.json_schema({"type": "string"}), tokenizer.encode(text), eos)


@pytest.mark.parametrize("value", ["<think>x<|im_end|>", "e\u0301", "\u1e9b\u0323", "</think>"])
def test_a_text_that_the_tokenizer_would_change_can_be_said(
    compiler: GrammarCompiler, tokenizer: Tokenizer, value: str
) -> None:
    """A constant leaves one way on at each step, if there is one at all."""
    state, said = compiler.json_schema({"const": value}).begin(), list[int]()
    while not (allowed := allowed_ids(state)) & set(compiler.eos_token_ids):
        said.append(min(allowed))
        state.accept(said[-1])
    assert json.loads(tokenizer.decode(said, skip_special_tokens=False)) == value


def test_ids_beyond_those_of_the_model_are_never_allowed(small_tokenizer: Tokenizer) -> None:
    """An embedding may have fewer rows than the tokenizer has tokens."""
    full = compiler_of(small_tokenizer)
    ends = [end for end in full.eos_token_ids if end < 262]
    cut = GrammarCompiler(small_tokenizer, ends, 262)
    assert len(ends) == 1
    state = cut.regex("(?s).*").begin()
    assert max(allowed_ids(state)) < 262 <= max(allowed_ids(full.regex("(?s).*").begin()))

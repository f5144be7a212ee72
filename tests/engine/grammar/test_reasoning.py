"""A thought, perhaps, and then an answer in its language."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarCompiler, after_reasoning, tool_calls
from engine.tokenizer import Tokenizer
from reference.serving.request import Constraint
from tests.engine.grammar.walking import accept_all, allowed_ids, holds
from tests.reference.serving.automaton import Anything

pytestmark = pytest.mark.usefixtures("untried")

ANSWER = '{"a": 1}'


def thinking(compiler: GrammarCompiler, answer: Constraint | None = None, *, inside: bool = False) -> Constraint:
    begin, end = (compiler.tokenizer.added_tokens[tag] for tag in ("<think>", "</think>"))
    return after_reasoning(compiler, answer or compiler.json_object(), begin, end, inside=inside)


@pytest.mark.parametrize(
    ("text", "inside", "is_answer"),
    [
        (ANSWER, False, True),
        (f"<think>\nWell: 'what' <|im_start|>?\n</think>\n\n{ANSWER}", False, True),
        (f"<think></think>{ANSWER}", False, True),
        (f"<think>one\n</think>\n{ANSWER}", False, True),
        (f"<think><think></think>\n\n{ANSWER}", False, True),
        (f"one {ANSWER}</think>\n\n{ANSWER}", True, True),
        (f"</think>{ANSWER}", True, True),
        (f"<think>one</think>\n\n{ANSWER}", True, True),
        (f"\n\n{ANSWER}", False, False),
        (f"one</think>{ANSWER}", False, False),
        (f"<think>one</think> {ANSWER}", False, False),
        (f"<think>one</think>\n\none</think>{ANSWER}", False, False),
        (f"<think>one</think><think>two</think>{ANSWER}", False, False),
        ("<think>one</think>\n\n", False, False),
        (f"<think>{ANSWER}", False, False),
        (ANSWER, True, False),
        (f"{{<think>one</think>{ANSWER}", False, False),
    ],
)
def test_where_a_thought_may_stand(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str, inside: bool, is_answer: bool
) -> None:
    constraint = thinking(compiler, inside=inside)
    assert holds(constraint, tokenizer.encode(text), compiler.eos_token_ids[0]) is is_answer


def test_the_first_token_is_of_either(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    of_answer = allowed_ids(compiler.json_object().begin())
    assert allowed_ids(thinking(compiler).begin()) == of_answer | {tokenizer.added_tokens["<think>"]}


def test_a_thought_may_be_anything_but_the_end_of_all(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = thinking(compiler, inside=True).begin()
    assert allowed_ids(state) == set(range(tokenizer.num_token_ids)) - set(compiler.eos_token_ids)
    with pytest.raises(ValueError, match="in a thought"):
        state.accept(compiler.eos_token_ids[0])
    state.accept(tokenizer.added_tokens["</think>"])


def test_the_lines_after_a_thought_do_not_go_on_forever(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = accept_all(thinking(compiler).begin(), tokenizer.encode("<think>one</think>"))
    of_answer, newline = allowed_ids(compiler.json_object().begin()), tokenizer.encode("\n")[0]
    for _ in range(2):
        after = allowed_ids(state) - of_answer
        assert newline in after
        assert all(not tokenizer.id_to_bytes(token_id).strip(b"\n") for token_id in after)
        state.accept(newline)
    assert allowed_ids(state) == of_answer
    with pytest.raises(ValueError, match="not allowed"):
        state.accept(newline)
    assert allowed_ids(state) == of_answer


@given(token_ids=st.lists(st.integers(0, 4095), max_size=12))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_refused_changes_nothing(compiler: GrammarCompiler, tokenizer: Tokenizer, token_ids: list[int]) -> None:
    state = thinking(compiler, compiler.choice(["ab", "cd"])).begin()
    for token_id in [*token_ids, *tokenizer.encode("<think></think>"), *token_ids, *tokenizer.encode("\nab")]:
        before = allowed_ids(state)
        if token_id in before:
            state.accept(token_id)
        else:
            with pytest.raises(ValueError, match="not allowed"):
                state.accept(token_id)
            assert allowed_ids(state) == before


def test_an_answer_that_may_be_anything(compiler: GrammarCompiler) -> None:
    state = thinking(compiler, Anything()).begin()
    assert state.allowed() is None
    state.accept(5)
    assert state.allowed() is None


def test_calls_of_tools_after_a_thought(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = thinking(compiler, tool_calls(compiler, {"f": None}))
    text = '<think>\none\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert holds(constraint, tokenizer.encode(text), compiler.eos_token_ids[0])

"""Free text in which calls, once begun, are calls of the tools there are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammar import GrammarCompiler, after_reasoning, calls_in_text, tool_calls
from engine.tokenizer import Tokenizer
from reference.serving.request import Constraint
from tests.engine.grammar.walking import accept_all, allowed_ids, bytes_as_ids

pytestmark = pytest.mark.usefixtures("untried")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: dict[str, Any] = {"get": None, "get_weather": {**CITY, "additionalProperties": False}}


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


PARIS = call("get_weather", {"city": "Paris"})


def free(compiler: GrammarCompiler, *, parallel: bool = True) -> Constraint:
    begin, end = (compiler.tokenizer.added_tokens[tag] for tag in ("<tool_call>", "</tool_call>"))
    return calls_in_text(compiler, tool_calls(compiler, TOOLS, parallel=False), begin, end, parallel=parallel)


def is_answer(constraint: Constraint, tokenizer: Tokenizer, text: str, eos: int) -> bool:
    try:
        accept_all(constraint.begin(), [*tokenizer.encode(text), eos])
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ('It is {"sunny"} </tool_call> <think>', True),
        (PARIS, True),
        (f"See: {PARIS}\n{call('get', {'any': [1]})} so", True),
        (f"{PARIS}{PARIS}", True),
        (call("weather", {"city": "Paris"}), False),
        (call("get_weather", {"town": "Paris"}), False),
        (call("get", ["no object"]), False),
        (PARIS.removesuffix("\n</tool_call>"), False),
        (f"{PARIS} {call('weather', {})}", False),
    ],
)
def test_text_is_free_and_calls_are_not(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str, holds: bool
) -> None:
    eos = compiler.eos_token_ids[0]
    assert is_answer(free(compiler), tokenizer, text, eos) is holds
    thought = f"<think>\n{call('weather', {})}\n</think>\n\n"
    begin, end = (tokenizer.added_tokens[tag] for tag in ("<think>", "</think>"))
    thinking = after_reasoning(compiler, free(compiler), begin, end)
    if not text.startswith("<think>"):
        assert is_answer(thinking, tokenizer, thought + text, eos) is holds, "a thought holds no calls"


def test_one_call_ends_the_answer(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = accept_all(free(compiler, parallel=False).begin(), tokenizer.encode("See: "))
    assert state.allowed() is None
    state = accept_all(state, tokenizer.encode(PARIS))
    assert allowed_ids(state) == set(compiler.eos_token_ids)
    with pytest.raises(ValueError, match="is not allowed after the only call"):
        state.accept(tokenizer.encode("a")[0])


def test_states_are_independent(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = free(compiler)
    one, other = constraint.begin(), constraint.begin()
    begun = tokenizer.encode(PARIS)
    accept_all(one, begun[:-6])
    accept_all(other, begun[:-4])
    accept_all(one, begun[-6:])
    assert one.allowed() is None and other.allowed() is not None


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("cut", [b"", b"<|im_start|>"])
def test_the_tag_of_a_call_is_not_spelled(
    compiler: GrammarCompiler, tokenizer: Tokenizer, parallel: bool, cut: bytes
) -> None:
    """Who reads the text would find a call there, of whatever kind. A special token is no part of the text."""
    spelled = bytes_as_ids(tokenizer, "See: <<tool_call")
    special = [tokenizer.added_tokens[cut.decode()]] if cut else []
    state = accept_all(free(compiler, parallel=parallel).begin(), [*spelled[:-3], *special, *spelled[-3:]])
    closes = tokenizer.encode(">")[0]
    assert closes not in allowed_ids(state) and tokenizer.encode(" ")[0] in allowed_ids(state)
    assert tokenizer.added_tokens["<tool_call>"] in allowed_ids(state)
    with pytest.raises(ValueError, match="is not allowed to spell the beginning of a call"):
        state.accept(closes)
    state.accept(tokenizer.encode("s")[0])
    assert state.allowed() is None
    accept_all(state, tokenizer.encode(PARIS))


def test_the_end_of_a_thought_is_not_spelled(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    begin, end = (tokenizer.added_tokens[tag] for tag in ("<think>", "</think>"))
    state = after_reasoning(compiler, free(compiler), begin, end).begin()
    accept_all(state, [begin, *bytes_as_ids(tokenizer, "hm </think")])
    closes = tokenizer.encode(">")[0]
    assert closes not in allowed_ids(state) and end in allowed_ids(state)
    with pytest.raises(ValueError, match="is not allowed in a thought"):
        state.accept(closes)
    accept_all(state, [end, *tokenizer.encode(PARIS), compiler.eos_token_ids[0]])

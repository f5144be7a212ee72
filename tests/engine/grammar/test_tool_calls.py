"""Calls of tools, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarCompiler, tool_calls
from engine.tokenizer import Tokenizer
from tests.engine.grammar.conftest import compiler_of
from tests.engine.grammar.walking import accept_all, allowed_ids, holds, random_answer

pytestmark = pytest.mark.usefixtures("untried")

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "required": ["city"]}
TOOLS: dict[str, Any] = {
    "get": None,
    "get_weather": {**CITY, "additionalProperties": False, "$defs": {"name": {"type": "string", "minLength": 1}}},
    "set": {"type": "object", "properties": {"n": {"type": "integer"}}, "$defs": {"name": {"type": "null"}}},
}


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


ONE = call("get_weather", {"city": "São Paulo"})


def check_calls(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    eos = compiler.eos_token_ids[0]
    one, many = tool_calls(compiler, TOOLS, parallel=False), tool_calls(compiler, TOOLS)
    for text in (ONE, call("get", {}), call("get", {"any": [1, None]}), call("set", {"n": 5})):
        assert holds(one, tokenizer.encode(text), eos), "as the model writes it"
        assert holds(many, tokenizer.encode(f"{text}\n{ONE}\n{text}"), eos)
    for text in (
        "",
        "It is sunny.",
        f"{ONE}\n{ONE}",
        f"{ONE} ",
        f"Well: {ONE}",
        call("get_weather", {"city": ""}),
        call("get_weather", {"town": "Paris"}),
        call("get_wind", {"city": "Paris"}),
        call("get", ["no object"]),
        '<tool_call>\n{"arguments": {}, "name": "get"}\n</tool_call>',
        '<tool_call>\n{"name": "get"}\n</tool_call>',
        ONE.removesuffix("\n</tool_call>"),
    ):
        assert not holds(one, tokenizer.encode(text), eos)


def test_calls_as_the_template_writes_them(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    check_calls(compiler, tokenizer)


def test_with_tags_that_are_no_tokens(small_compiler: GrammarCompiler, small_tokenizer: Tokenizer) -> None:
    assert "<tool_call>" not in small_tokenizer.added_tokens
    check_calls(small_compiler, small_tokenizer)


@pytest.mark.network
def test_with_the_tokens_of_qwen3(qwen3_tokenizer: Tokenizer) -> None:
    check_calls(compiler_of(qwen3_tokenizer), qwen3_tokenizer)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_model_says_is_calls(compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int) -> None:
    tools = {name: TOOLS[name] for name in ("get_weather", "set")}
    constraint = tool_calls(compiler, tools, parallel=False)
    answer = random_answer(constraint, tokenizer, compiler.eos_token_ids, seed, calm=4)
    assert answer is not None
    text = tokenizer.decode(answer, skip_special_tokens=False)
    assert text.startswith("<tool_call>\n") and text.endswith("\n</tool_call>")
    said = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert list(said) == ["name", "arguments"]
    jsonschema_rs.Draft202012Validator(tools[said["name"]]).validate(said["arguments"])


def test_the_tags_are_tokens_where_there_are_such(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = tool_calls(compiler, TOOLS).begin()
    assert allowed_ids(state) == {tokenizer.added_tokens["<tool_call>"]}
    accept_all(state, tokenizer.encode('<tool_call>\n{"name": "get", "arguments": {"a": "x'))
    assert not allowed_ids(state) & set(tokenizer.added_tokens.values())
    accept_all(state, tokenizer.encode('"}}\n'))
    assert allowed_ids(state) == {tokenizer.added_tokens["</tool_call>"]}


def test_other_tags(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = tool_calls(compiler, {"f": None}, begin="<call>", end="</call>")
    assert holds(constraint, tokenizer.encode('<call>\n{"name": "f", "arguments": {}}\n</call>'), 4072)


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "é 😀", "%json", "a\nb", "<think>"])
def test_odd_names(compiler: GrammarCompiler, name: str) -> None:
    state, said = tool_calls(compiler, {name: {"const": {}, "type": "object"}}, parallel=False).begin(), list[int]()
    while not (allowed := allowed_ids(state)) & set(compiler.eos_token_ids):
        said.append(max(allowed))
        state.accept(said[-1])
    text = compiler.tokenizer.decode(said, skip_special_tokens=False)
    assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] == name


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ({}, "no tool"),
        ({"a": None, "b": {"uniqueItems": True}, "c": None}, "parameters of 'b': Unimplemented.*uniqueItems"),
        ({"a": {"uniqueItems": True}}, "parameters of 'a': .*uniqueItems"),
        ({"a": None, "b": {"type": "string"}}, "parameters of 'b': .*object"),
        ({"a": False}, "parameters of 'a'"),
        ({"a": {"x-guidance": {}}}, "parameters of 'a': x-guidance"),
        ({"a": 5}, "parameters of 'a': .*not int"),
    ],
)
def test_a_tool_that_cannot_be_forced_is_named(compiler: GrammarCompiler, tools: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tool_calls(compiler, tools)

"""What can be asked for, and what is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarCompiler
from engine.grammar.compiler import MAX_SOURCE_BYTES
from engine.tokenizer import Tokenizer
from tests.engine.grammar.conftest import compiler_of
from tests.engine.grammar.walking import holds

pytestmark = pytest.mark.usefixtures("untried")


@pytest.mark.parametrize(
    ("pattern", "whole", "others"),
    [
        ("^a+$", ["a", "aaa"], ["", "b", "ab"]),
        (r"\d{3}-[A-Z]", ["123-Q"], ["12-Q", "123-QQ"]),
        ("(?i)yes|no", ["yes", "NO"], ["maybe", "yesno"]),
        ("é+/😀", ["éé/😀"], ["é/"]),
        (".*", ["", "any line"], ["two\nlines"]),
    ],
)
def test_a_regular_expression_is_matched_whole(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str, whole: list[str], others: list[str]
) -> None:
    constraint, eos = compiler.regex(pattern), compiler.eos_token_ids[0]
    assert all(holds(constraint, tokenizer.encode(text), eos) for text in whole)
    assert not any(holds(constraint, tokenizer.encode(text), eos) for text in others)


@given(options=st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=6))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_choice_is_of_any_texts(compiler: GrammarCompiler, tokenizer: Tokenizer, options: list[str]) -> None:
    constraint, eos = compiler.choice(options), compiler.eos_token_ids[0]
    for option in options:
        token_ids = tokenizer.encode(option)
        if tokenizer.decode(token_ids, skip_special_tokens=False) == option:  # it is normalized
            assert holds(constraint, token_ids, eos)
    assert not holds(constraint, tokenizer.encode("".join(options) + "!"), eos)


def test_a_grammar_as_lark_or_as_gbnf_writes_it(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """The translation of GBNF is the trial's, which is left out here; see test_trial."""
    eos = compiler.eos_token_ids[0]
    lark = compiler.grammar('start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/')
    assert holds(lark, tokenizer.encode("1+22+333"), eos)
    assert not holds(lark, tokenizer.encode("1+"), eos)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "if.*then"),
        ({"not": {"type": "string"}}, "not"),
        ({"contains": {"type": "string"}}, "contains"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"items": {"properties": {"a": {"uniqueItems": True}}}}, "uniqueItems"),
        ({"type": "string", "format": "regex"}, "format: regex"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "string", "pattern": "("}, "unclosed"),
        ({"oneOf": [{"minLength": 2}, {"maxLength": 5}]}, "oneOf"),
        ({"patternProperties": {"^a": {}, "b$": {}}}, "disjoint"),
        ({"$ref": "https://example.com/schema.json"}, "example.com"),
        ({"$ref": "file:///etc/passwd"}, "passwd"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$ref": "#"}, "no answer is possible"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
        ({"type": "text"}, "text"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"minItems": "three"}, "minItems"),
        ({"properties": 5}, "properties"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "x-guidance"),
        ({"const": 2**53 + 1}, str(2**53 + 1)),
        ({"items": {"maximum": 2**53 + 1}}, str(2**53 + 1)),
        ({"enum": [{"a": [10**400]}]}, "double precision"),
        ({"type": "object", "minProperties": 2}, "minProperties 2"),
        ({"items": {"minProperties": 4, "required": ["a", "b"]}}, "minProperties 4"),
        ({"properties": {f"p{i}": {} for i in range(451)}}, "450"),
        ({"description": "x" * MAX_SOURCE_BYTES}, f"may take {MAX_SOURCE_BYTES}"),
        (False, "allows nothing"),
        ([], "not list"),
        ("{}", "not str"),
        (None, "not NoneType"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_by_the_name_of_what_cannot(
    compiler: GrammarCompiler, schema: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        compiler.json_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "object", "properties": {"uniqueItems": {"type": "boolean"}, "pattern": {"const": "["}}},
        {"enum": [{"minProperties": 5, "pattern": "["}]},
        {"title": "T", "description": "D", "default": 5, "examples": [1], "deprecated": True, "type": "integer"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"type": "array", "minItems": 10**9, "items": {"type": "string", "minLength": 10**6}},
        {"type": "object", "required": ["a", "b"], "minProperties": 3},
        {"properties": {f"p{i}": {} for i in range(450)}},
        {"const": 2**60},
    ],
)
def test_taken(compiler: GrammarCompiler, schema: Any) -> None:
    compiler.json_schema(schema)


def test_literals_are_not_taken_for_schemas(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    value = {"pattern": "[a]", "properties": {"minProperties": 9}}
    eos = compiler.eos_token_ids[0]
    for schema in ({"const": value}, {"properties": {"const": {"enum": [value]}}, "required": ["const"]}):
        said = value if "const" in schema else {"const": value}
        assert holds(compiler.json_schema(schema), tokenizer.encode(json.dumps(said)), eos)


@pytest.mark.parametrize(
    ("method", "source", "reason"),
    [
        ("regex", "a(", "unclosed"),
        ("regex", r"\bword\b", "not supported"),
        ("regex", "a" * (MAX_SOURCE_BYTES + 1), "may take"),
        ("choice", [], "empty"),
        ("choice", ["a" * MAX_SOURCE_BYTES], "may take"),
        ("grammar", "start: b", "b"),
        ("grammar", "", "[Ee]mpty"),
        ("grammar", "start: <|no_such_token|>", "no_such_token"),
        ("grammar", 'start: %json {"x-guidance": {"lenient": true}, "uniqueItems": true}', "uniqueItems"),
    ],
)
def test_other_sources_that_are_wrong(compiler: GrammarCompiler, method: str, source: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        getattr(compiler, method)(source)


def test_a_model_without_an_end_has_no_answers_of_a_form(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no end-of-sequence id"):
        GrammarCompiler(tokenizer, [], tokenizer.num_token_ids).json_object()


def test_a_source_is_tried_once_and_compiled_for_each_request(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one request makes of its lexer is not the next one's."""
    tried = []
    monkeypatch.setattr(
        "engine.grammar.compiler.try_to_compile", lambda source, special, is_gbnf: tried.append(source) or source
    )
    compiler = compiler_of(tokenizer)
    one, other = compiler.regex("a+"), compiler.regex("a+")
    assert one is not other and len(tried) == 1
    compiler.regex("b+")
    assert len(tried) == 2
    compiler.json_object()
    compiler.choice(["a", "b"])
    assert len(tried) == 2, "these cannot cost much"

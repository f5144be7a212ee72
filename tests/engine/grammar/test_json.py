"""Whatever a model says under a JSON schema, once it has ended it is JSON that the schema allows."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarCompiler
from engine.tokenizer import Tokenizer
from tests.engine.grammar.walking import bytes_as_ids, holds, random_answer

pytestmark = pytest.mark.usefixtures("untried")

Json = dict[str, Any]


def bounds(low: str, high: str, values: st.SearchStrategy[int]) -> st.SearchStrategy[Json]:
    both = st.tuples(values, values).map(sorted).map(lambda pair: {low: pair[0], high: pair[1]})
    return st.one_of(st.just({}), values.map(lambda n: {low: n}), values.map(lambda n: {high: n}), both)


def of_type(name: str, *keywords: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.tuples(*keywords).map(lambda parts: {"type": name} | {k: v for part in parts for k, v in part.items()})


TEXT = st.text(st.characters(codec="utf-8"), max_size=4)
VALUE = st.one_of(st.none(), st.booleans(), st.integers(-999, 999), TEXT, st.lists(st.integers(0, 9), max_size=2))
PATTERN = st.sampled_from(
    [r"^\d{3}-\d{4}$", "^(ab|c)+$", "x", r"^[^\"\\]{2}$", "^é?ü$", r"\w\s\w", '^[^",]+$', "^[a[b&&]$"]
)
FORMAT = st.sampled_from(["uuid", "ipv4"])
KEY = st.sampled_from(["a", "b", "ab", "k 1", 'q"', "é", "\n", "$ref", "type", "😀"])
LEAF = st.one_of(
    of_type("null"),
    of_type("boolean"),
    of_type("integer", bounds("minimum", "maximum", st.integers(-120, 1200))),
    of_type("integer", bounds("exclusiveMinimum", "maximum", st.integers(-9, 9).map(lambda n: 3 * n))).filter(
        lambda schema: schema.get("exclusiveMinimum", -99) < schema.get("maximum", 99)
    ),
    of_type("integer", st.integers(1, 60).map(lambda n: {"multipleOf": n})),
    of_type("number", bounds("minimum", "maximum", st.integers(-12, 12))),
    of_type("string", bounds("minLength", "maxLength", st.integers(0, 6))),
    of_type("string", PATTERN.map(lambda pattern: {"pattern": pattern})),
    of_type("string", FORMAT.map(lambda name: {"format": name})),
    st.lists(VALUE, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    VALUE.map(lambda value: {"const": value}),
    st.just({"type": ["string", "null"]}),
    st.just({"$ref": "#/$defs/list"}),
    st.just({"$ref": "#/$defs/tree", "description": "siblings that say nothing"}),
    st.just({"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^a"}]}),
)


def composed(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    def objects(properties: dict[str, Json], required: list[bool], others: bool | Json) -> Json:
        named = [name for name, is_required in zip(properties, required, strict=False) if is_required]
        return {"type": "object", "properties": properties, "required": named, "additionalProperties": others}

    return st.one_of(
        of_type(
            "array", inner.map(lambda schema: {"items": schema}), bounds("minItems", "maxItems", st.integers(0, 3))
        ),
        of_type("array", st.lists(inner, min_size=1, max_size=2).map(lambda s: {"prefixItems": s, "items": False})),
        st.builds(
            objects,
            st.dictionaries(KEY, inner, max_size=3),
            st.lists(st.booleans(), min_size=3, max_size=3),
            st.one_of(st.just(False), inner),
        ),
        of_type("object", inner.map(lambda schema: {"patternProperties": {"^p": schema}})),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )


DEFINITIONS = {
    "list": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/list"}, "maxItems": 2}]},
    "tree": {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
}
SCHEMA = st.recursive(LEAF, composed, max_leaves=5).map(lambda schema: schema | {"$defs": DEFINITIONS})


@given(schema=SCHEMA, seed=st.integers(0, 2**32))
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_finished_answer_is_json_that_the_schema_allows(
    small_compiler: GrammarCompiler, small_tokenizer: Tokenizer, schema: Json, seed: int
) -> None:
    answer = random_answer(
        small_compiler.json_schema(schema), small_tokenizer, small_compiler.eos_token_ids, seed, calm=20
    )
    assume(answer is not None)  # Hypothesis complains if it seldom is
    assert answer is not None
    # 1E999 is a number in JSON, if not one that a float can hold.
    finite = {"parse_float": lambda text: max(min(float(text), 1e300), -1e300)}
    value = json.loads(small_tokenizer.decode(answer, skip_special_tokens=False), **finite)
    jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(value)


@given(value=st.recursive(VALUE | st.floats(allow_nan=False, allow_infinity=False), lambda v: st.lists(v, max_size=3)))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_can_be_said_as_python_writes_it(compiler: GrammarCompiler, tokenizer: Tokenizer, value: Any) -> None:
    anything, eos = compiler.json_schema(True), compiler.eos_token_ids[0]
    for indent in (None, 4):
        # The library wants this one character escaped.
        text = json.dumps(value, ensure_ascii=False, indent=indent).replace("\x7f", "\\u007f")
        assert holds(anything, tokenizer.encode(text), eos)


def test_the_answers_of_a_schema_differ_from_those_of_another(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """The control: the walk above would find an answer that the schema does not allow."""
    answer = random_answer(compiler.json_schema({"type": "integer"}), tokenizer, compiler.eos_token_ids, 0, calm=0)
    assert answer is not None
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.Draft202012Validator({"type": "string"}).validate(json.loads(tokenizer.decode(answer)))


def test_an_object_is_an_object(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint, eos = compiler.json_object(), compiler.eos_token_ids[0]
    for text in ("{}", '{"a": [1, {"b": null}], "é": "\\n\\u0001"}', '{\n  "a": {}\n}'):
        assert holds(constraint, tokenizer.encode(text), eos)
    for text in ("[]", "1", "", ' {"a": 1}', '{"a": 1} ', '{"a": 01}', "{'a': 1}", '{"a": NaN}', '{"a": "\t"}'):
        assert not holds(constraint, tokenizer.encode(text), eos)


def test_white_space_does_not_go_on_forever(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint, eos = compiler.json_object(), compiler.eos_token_ids[0]
    for white, is_allowed in (
        (4 * " ", True),
        (5 * " ", False),
        ("\n" + 40 * " ", True),
        ("\n" + 41 * " ", False),
        (" \n\r\n\t", True),
        (3 * "\n", False),
        ("\n \n", False),
    ):
        for text in (f'{{{white}"a":1}}', f'{{"a"{white}:{white}1{white}}}'):
            assert holds(constraint, bytes_as_ids(tokenizer, text), eos) is is_allowed


def test_properties_come_in_the_order_of_the_schema(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    properties = {name: {"type": "integer"} for name in "zay"}
    constraint = compiler.json_schema({"type": "object", "properties": properties, "required": list("ayz")})
    eos = compiler.eos_token_ids[0]
    assert holds(constraint, tokenizer.encode('{"z": 1, "a": 2, "y": 3}'), eos)
    assert not holds(constraint, tokenizer.encode('{"a": 2, "y": 3, "z": 1}'), eos)

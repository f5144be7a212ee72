"""JSON schemas, as far as the grammar library follows them to the letter.

It refuses keywords that it does not know to be annotations and cannot follow (`uniqueItems`, `not`, `if`, ...), by
name. What it would follow otherwise than to the letter is refused or put right here. Properties come in the order of
the schema. A `format` is followed as far as a regular expression goes: any year may have a 29 February, any minute a
second 60, and the parts of an address any length.
Source: JSON Schema 2020-12; llguidance's docs/json_schema.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher

from engine.grammar.pattern import rust_pattern

# Between JSON's symbols: a few spaces, or a new line, or an empty one, and its indent. With no limit, a model that has
# lost its way goes on with white space to the end of its budget.
WHITESPACE = r"[ \t]{1,4}|[ \t]{0,4}(\r?\n){1,2}[ \t]{0,40}"

MAX_OPTIONAL = 450  # properties of one object; with more the library gives up in the middle of an answer

_LITERALS = ("const", "enum")  # keywords of values that are no schemas
_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # keywords of named schemas
_LIBRARY_OPTIONS = "x-guidance"

Schema = Mapping[str, Any] | bool


def schema_source(schema: Schema) -> str:
    """The library's grammar of a schema. Errors: ValueError."""
    return LLMatcher.grammar_from_json_schema(_written(schema))


def inline_schema(schema: Schema) -> str:
    """The same as a symbol of a Lark grammar. Errors: ValueError."""
    return f"%json {_written(schema)}"


def _written(schema: Schema) -> str:
    return json.dumps({**checked(schema), _LIBRARY_OPTIONS: {"whitespace_pattern": WHITESPACE}})


def checked(schema: Schema) -> dict[str, Any]:
    """The schema, as an object, in the library's words. Errors: ValueError for what it would not follow."""
    if schema is False:
        raise ValueError("the schema false allows nothing")
    if schema is not True and not isinstance(schema, Mapping):
        raise ValueError(f"a JSON schema is an object or a boolean, not {type(schema).__name__}")
    plain = {} if schema is True else _subschema(schema)
    if _LIBRARY_OPTIONS in plain:
        raise ValueError(f"{_LIBRARY_OPTIONS} is not supported")
    return plain


def _subschema(schema: Mapping[str, Any]) -> dict[str, Any]:
    minimum, properties, listed = schema.get("minProperties"), schema.get("properties"), schema.get("required")
    required = set(map(str, listed)) if isinstance(listed, list) else set()
    # Keys that no property names may repeat, and count once.
    if isinstance(minimum, int) and minimum > len(required) + 1:
        raise ValueError(f"minProperties {minimum} is not supported: name the properties in required")
    if isinstance(properties, Mapping) and len(properties.keys() - required) > MAX_OPTIONAL:
        raise ValueError(f"properties has more than {MAX_OPTIONAL} that are not required; require some")
    return {keyword: _value(keyword, value) for keyword, value in schema.items()}


def _value(keyword: str, value: Any) -> Any:
    if keyword in _LITERALS:
        _check_numbers(value)
    elif keyword == "pattern" and isinstance(value, str):
        return rust_pattern(value)
    elif keyword in _MAPS and isinstance(value, Mapping):
        named = {rust_pattern(name) if keyword == "patternProperties" else name: each for name, each in value.items()}
        return {name: _subschema(each) if isinstance(each, Mapping) else each for name, each in named.items()}
    elif isinstance(value, Mapping):
        return _subschema(value)
    elif isinstance(value, list):
        return [_subschema(each) if isinstance(each, Mapping) else each for each in value]
    else:
        _check_numbers(value)
    return value


def _check_numbers(value: Any) -> None:
    if isinstance(value, list | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            _check_numbers(each)
    elif type(value) is int and not _is_exact(value):
        raise ValueError(f"the number {value} is not supported: it has no exact value in double precision")


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False

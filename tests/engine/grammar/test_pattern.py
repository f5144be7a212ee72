"""Patterns of a JSON schema are followed as JSON Schema means them."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from engine.grammar import GrammarCompiler
from engine.grammar.pattern import rust_pattern
from engine.tokenizer import Tokenizer
from tests.engine.grammar.walking import holds

pytestmark = pytest.mark.usefixtures("untried")

# U+0000 is left out of classes, and U+007F may be escaped alone.
CHARACTERS = [*map(chr, range(1, 0x7F)), "é", "\u2028", "😀"]


@pytest.mark.parametrize(
    "pattern",
    [
        '^[^"]$',
        r"^[^\\]$",
        r'^[^"\\]$',
        r'^[^\n"]$',
        r"^[\x00-!]$",
        r"^[\x00-\x1f]$",
        r"^[^\x00-\x1f]$",
        "^[a[b]$",
        "^[^[]$",
        "^[a&&b]$",
        "^[+--]$",
        "^[---]$",
        "^[!--/]$",
        "^[a~~b]$",
        "^[-a]$",
        "^[a-]$",
        r"^[\]a\-\[]$",
        r"^[\w-]$",
        r"^[^\W\d]$",
        r'^[^\s"]$',
        r"^\[$",
        r"^[.*+?^$]$",
        r"^\W$",
        "^.$",
        "a",
        "[x-z]|^[^b-z]$",
    ],
)
def test_each_character_that_the_pattern_matches_and_no_other(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str
) -> None:
    schema = {"type": "string", "pattern": pattern}
    constraint, validator = compiler.json_schema(schema), jsonschema_rs.Draft202012Validator(schema)
    allowed = [
        character
        for character in CHARACTERS
        if any(
            holds(constraint, tokenizer.encode(json.dumps(character, ensure_ascii=ascii)), compiler.eos_token_ids[0])
            for ascii in (False, True)
        )
    ]
    assert allowed == [character for character in CHARACTERS if validator.is_valid(character)]


def test_keys_too(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = compiler.json_schema(
        {"type": "object", "patternProperties": {'^[^"]$': True}, "additionalProperties": False}
    )
    eos = compiler.eos_token_ids[0]
    assert holds(constraint, tokenizer.encode('{"a":1}'), eos)
    assert not holds(constraint, tokenizer.encode('{"\\"":1}'), eos)


@pytest.mark.parametrize(
    ("pattern", "reason"), [("[]", "empty"), ("[^]", "empty"), ("a[b", "without its end"), (r"[a\]", "without its end")]
)
def test_classes_that_are_none(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        rust_pattern(pattern)


def test_what_stands_outside_of_classes_stays() -> None:
    assert rust_pattern(r"^(a|\[b\])*\\x{2,}$") == r"^(a|\[b\])*\\x{2,}$"

"""A hostile source costs a process of its own so much and no more, and nobody else anything."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from engine.grammar import GrammarCompiler, trial
from engine.grammar.schema import schema_source
from engine.grammar.trial import try_to_compile
from engine.tokenizer import Tokenizer
from tests.engine.grammar.walking import allowed_ids, holds

DOUBLING: dict[str, Any] = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    | {"d30": {"type": "string", "pattern": "a"}},
}


@pytest.mark.parametrize("schema", [{"type": "integer", "multipleOf": 99_999_999}, DOUBLING])
def test_what_takes_too_much_is_refused(
    compiler: GrammarCompiler, schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("it is not compiled in this process")

    monkeypatch.setattr("engine.grammar.compiler.compiled", never)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(ValueError, match="more than 2 seconds or 1024 MiB"):
        compiler.json_schema(schema)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < trial.CPU_SECONDS + 1


def test_a_trial_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "WALL_SECONDS", 0.001)
    with pytest.raises(ValueError, match="2 seconds"):
        try_to_compile("start: /a/", {})


def test_what_is_wrong_is_told_and_what_is_right_is_given_back() -> None:
    assert try_to_compile("start: /a/", {}) == "start: /a/"
    with pytest.raises(ValueError, match="uniqueItems"):
        try_to_compile(schema_source({"uniqueItems": True}), {})
    with pytest.raises(ValueError, match="Failed to convert"):
        try_to_compile('root ::= "a', {}, is_gbnf=True)
    assert "root" not in try_to_compile('root ::= "a"', {}, is_gbnf=True)


def test_special_tokens_are_known_by_id_and_name(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    by_name, by_id = (compiler.grammar(f"start: {token}") for token in ("<tool_call>", "<[4084]>"))
    assert tokenizer.added_tokens["<tool_call>"] == 4084
    assert allowed_ids(by_name.begin()) == allowed_ids(by_id.begin()) == {4084}


def test_gbnf(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint, eos = compiler.grammar('root ::= "a" list\nlist ::= [x-z]+'), compiler.eos_token_ids[0]
    assert holds(constraint, tokenizer.encode("axyz"), eos)
    assert not holds(constraint, tokenizer.encode("a"), eos)

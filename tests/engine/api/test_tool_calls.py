"""Calls are found however the text is cut, what is no call is content, and nothing leaks from one to the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.pieces import CallArguments, CallBegun, Content, Piece, beginning_of, joined
from engine.api.tool_calls import ToolCallSplit
from tests.engine.api.cuts import PLACES, cut

Found = tuple[str, list[tuple[str, str]]]  # content, and the names and arguments of the calls


def block(name: str = "f", arguments: str = '{"a": 1}') -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def split(texts: list[str]) -> tuple[list[Piece], ToolCallSplit]:
    parser = ToolCallSplit()
    pieces = [piece for text in texts for piece in parser.push(text)]
    return list(joined([*pieces, *parser.finish()])), parser


def found(text: str) -> Found:
    content, calls = "", list[tuple[str, str]]()
    for piece in split([text])[0]:
        match piece:
            case Content(said):
                content += said
            case CallBegun(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, more):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + more)
    return content, calls


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<tool_", "call>", "</", "<", "{", "}", '"', "\\", "\n", " ", "ab", "é😀", "[]"),
    *('{"name": "f", "arguments": {', '"name"', '{"arguments": {}, "name": "g"}', '"a</tool_call>"', ": ", ", "),
    *(block(), block("g", "{}"), '"arguments": "{}"'),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@given(text=TEXTS, places=PLACES)
def test_however_it_is_cut(text: str, places: list[int]) -> None:
    pieces, parser = split(cut(text, places))
    whole, of_whole = split([text])
    assert pieces == whole
    assert (parser.num_calls, parser.num_ended) == (of_whole.num_calls, of_whole.num_ended)


@given(text=TEXTS)
def test_a_text_without_calls_is_content_to_the_letter(text: str) -> None:
    content, calls = found(text)
    if not calls:
        assert content == text
    else:
        assert all(name for name, _ in calls)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\{}<>/\n', max_size=4) | st.just("</tool_call>"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text('k}"', max_size=2), inner, max_size=2),
    max_leaves=6,
)
CALLS = st.tuples(
    st.text('ab"\\', min_size=1, max_size=4),
    st.dictionaries(st.text('kl"{\\', max_size=3), JSON, max_size=3),
    st.sampled_from([None, 2]),  # indent
)


@given(calls=st.lists(CALLS, min_size=1, max_size=3), before=st.sampled_from(["", "Sure.\n", "a <b"]), places=PLACES)
def test_what_is_written_as_a_call_is_one(calls: list[Any], before: str, places: list[int]) -> None:
    expected = [(name, json.dumps(arguments, indent=indent)) for name, arguments, indent in calls]
    text = before + "\n".join(block(*call) for call in expected)
    assert found(text) == (before.rstrip(), expected)
    assert split(cut(text, places))[1].num_ended == len(calls)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (block(), ("", [("f", '{"a": 1}')])),
        ('<tool_call>{"name":"f","arguments":{ "a":1 }}</tool_call>', ("", [("f", '{ "a":1 }')])),
        (f"  {block()} \n {block('g', '{}')}\n", ("", [("f", '{"a": 1}'), ("g", "{}")])),
        (f"A \n{block()}\n\nB", ("A\n\nB", [("f", '{"a": 1}')])),
        # In another order, and with arguments that are no object.
        ('<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "f"}', ("", [("f", '{"a": "</tool_call>"}')])),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "arguments": "é"}</tool_call>', ("", [("f", "é")])),
        ('<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', ("", [("f", "{}")])),
        ('<tool_call>{"id": {"x": 1}, "name": "f", "arguments": {}}</tool_call>', ("", [("f", "{}")])),
        # More than the arguments, and tags that are missing.
        ('<tool_call>{"name": "f", "arguments": {}, "id": {"x": "}"}}</tool_call>', ("", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": {}</tool_call>B', ("B", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": {}}\nB', ("\nB", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": {}}\n' + block("g"), ("", [("f", "{}"), ("g", '{"a": 1}')])),
        ("<tool_call>" + block(), ("<tool_call>", [("f", '{"a": 1}')])),
        # Broken arguments are those of the call, and no more.
        (f"{block()[:-15]}\n</tool_call>{block('g')}", ("", [("f", '{"a": 1\n'), ("g", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "arguments": {"a": "b\n</tool_call>B', ("B", [("f", '{"a": "b\n')])),
        # The answer ends in the middle.
        (block()[:-1], ("", [("f", '{"a": 1}')])),
        (block()[: block().index("1")], ("", [("f", '{"a": ')])),
        ('<tool_call>\n{"name": "f", "argum', ('<tool_call>\n{"name": "f", "argum', [])),
        (f"{block()}\n<tool_", ("\n<tool_", [("f", '{"a": 1}')])),
    ],
)
def test_calls(text: str, expected: Found) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "nonsense",
        "[1]",
        '{"name": ""}',
        '{"name": 7, "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": 1}',
        '{"name": "f", "arguments": "\\ud800"}',  # a lone surrogate, which no answer could hold
        '{"name": "\\ud800", "arguments": {}}',
        "{" * 3000,
        '{"x": ' * 300 + "1" + "}" * 300,
        '{"arguments": {"x": ' + "1" * 5000 + '}, "name": "f"}',
    ],
)
def test_what_is_no_call_is_content(inside: str) -> None:
    text = f"A <tool_call>{inside}</tool_call> \n"
    assert found(text) == (text, [])


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolCallSplit()
    assert list(parser.push('Sure.\n<tool_call>\n{"name": "f", "argu')) == [Content("Sure.")]
    assert list(parser.push('ments": {"a"')) == [CallBegun(0, "f"), CallArguments(0, "{"), CallArguments(0, '"a"')]
    assert list(parser.push(": 1}")) == [CallArguments(0, ": 1}")]
    assert list(parser.push("}\n</tool_call")) == []
    assert (parser.num_calls, parser.num_ended) == (1, 0)
    assert list(parser.push(">")) == [] and parser.num_ended == 1


@given(tag=st.text("ab<", min_size=1, max_size=5), text=st.text("ab<", max_size=8))
def test_the_beginning_of_a_tag(tag: str, text: str) -> None:
    lengths = [n for n in range(1, len(tag)) if text.endswith(tag[:n])]
    assert beginning_of(tag, text) == max(lengths, default=0)

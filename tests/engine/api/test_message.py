"""A text taken apart into thought, content and calls: the same however it is cut, and nothing of it is lost."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.message import MessageParts
from engine.api.thought import ThoughtSplit
from engine.api.tool_calls import ToolCallSplit
from reference.serving.request import FinishReason

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
FRAGMENTS = st.sampled_from(
    [
        *(
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            CALL,
            "\n",
            "\n\n",
            " ",
            "hi",
            "<",
            "/",
            "think>",
            "</th",
        ),
        *(
            '{"name": "f", "arguments": {',
            '"a": "}</tool_call>"',
            "}",
            '{"arguments": {"x": [1]}, "name": "g"}',
            '"',
            "\\",
        ),
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=12).map("".join)


def parts(*, inside: bool = False, parallel: bool = True, calls: bool = True) -> MessageParts:
    return MessageParts(ThoughtSplit(inside=inside), ToolCallSplit(parallel=parallel) if calls else None)


def whole(text: str, **options: bool) -> dict[str, Any]:
    made = parts(**options)
    made.push(text, is_end=True)
    return without_ids(made.message())


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{k: v for k, v in call.items() if k != "id"} for call in message.get("tool_calls", [])]
    return message | ({"tool_calls": calls} if calls else {})


def accumulated(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                calls.append({"type": call["type"], "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {
        "reasoning_content": "".join(delta.get("reasoning_content", "") for delta in deltas),
        "content": "".join(delta.get("content", "") for delta in deltas),
        "tool_calls": calls,
    }


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=12), inside=st.booleans(), parallel=st.booleans())
def test_however_it_is_cut(text: str, cuts: list[int], inside: bool, parallel: bool) -> None:
    expected = whole(text, inside=inside, parallel=parallel)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    made = parts(inside=inside, parallel=parallel)
    deltas = []
    for begin, end in pairwise(places):
        deltas += made.push(text[begin:end], is_end=False)
    deltas += made.push("", is_end=True)
    assert without_ids(made.message()) == expected
    joined = accumulated(deltas)
    assert joined["content"] == (expected["content"] or "")
    assert joined["reasoning_content"] == expected.get("reasoning_content", "")
    assert joined["tool_calls"] == expected.get("tool_calls", [])


@given(text=st.text(alphabet='<>/ab\n {}"', max_size=40))
def test_text_without_tags_is_content_to_the_letter(text: str) -> None:
    if not text.lstrip().startswith("<think>") and "<tool_call>" not in text:
        assert whole(text) == {"role": "assistant", "content": text, "refusal": None}


@pytest.mark.parametrize(
    ("inside", "text", "thought", "content"),
    [
        (False, "<think>\nWhy?\n</think>\n\nBecause.", "Why?", "Because."),
        (False, "<think>\nWhy?\n\nSo.", "Why?\n\nSo.", None),  # cut short
        (False, "Because.", "", "Because."),
        (False, "<think>\n\n</think>\n\nBecause.", "", "Because."),
        (False, "Say <think> aloud</think>", "", "Say <think> aloud</think>"),
        (True, "Why?\n</think>\n\nBecause.", "Why?", "Because."),
        (True, "Why? </thi", "Why? </thi", None),
        (False, "<think>a</think>b</think>c", "a", "b</think>c"),
        (False, "  <thin", "", "  <thin"),
    ],
)
def test_thoughts(inside: bool, text: str, thought: str, content: str | None) -> None:
    message = whole(text, inside=inside)
    assert (message.get("reasoning_content", ""), message["content"]) == (thought, content)


def calls_of(text: str, **options: bool) -> tuple[str | None, list[tuple[str, str]]]:
    message = whole(text, **options)
    made = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message["content"], made


def test_calls() -> None:
    weather = ("get_weather", '{"city": "Paris"}')
    assert calls_of(CALL) == (None, [weather])
    assert calls_of(f"{CALL}\n{CALL}") == (None, [weather, weather])
    assert calls_of(f"{CALL}\n{CALL}", parallel=False) == (None, [weather])
    assert calls_of(f"Let me look.\n{CALL}\n") == ("Let me look.", [weather])
    assert calls_of(CALL, calls=False) == (CALL, [])
    assert calls_of(f"<think>\n{CALL}\n</think>\n\nNo.")[1] == [], "a call in a thought is none"


def test_arguments_are_passed_on_as_they_are_written() -> None:
    arguments = '{ "q":  "a \\"}\\" b</tool_call>", "n": [1, {"x": "]"}] }'
    assert calls_of(f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>') == (None, [("f", arguments)])


@pytest.mark.parametrize(
    ("block", "call"),
    [
        ('{"arguments": {"x": 1}, "name": "g"}', ("g", '{"x": 1}')),
        ('{"name": "g", "arguments": "{\\"x\\": 1}"}', ("g", '{"x": 1}')),
        ('{"name": "g"}', ("g", "{}")),
    ],
)
def test_other_ways_to_write_a_call(block: str, call: tuple[str, str]) -> None:
    assert calls_of(f"<tool_call>\n{block}\n</tool_call>") == (None, [call])


@pytest.mark.parametrize("block", ["nonsense", '{"name": 7, "arguments": {}}', "[1]", '{"name": ""}', "{" * 5000])
def test_what_is_no_call_is_content(block: str) -> None:
    text = f"<tool_call>{block}</tool_call>"
    assert calls_of(text) == (text, [])


def test_a_call_that_is_cut_short() -> None:
    cut = CALL[: CALL.index("Paris")]
    assert calls_of(cut) == (None, [("get_weather", '{"city": "')])
    assert calls_of("<tool_call>\n{") == ("<tool_call>\n{", [])


def test_the_reason_to_finish() -> None:
    made = parts()
    made.push(CALL, is_end=True)
    assert made.finish_reason(FinishReason.STOP) == "tool_calls"
    assert made.finish_reason(FinishReason.LENGTH) == "length"
    assert made.finish_reason(None) is None
    plain = parts()
    plain.push("hello", is_end=True)
    assert plain.finish_reason(FinishReason.STOP) == "stop"
    assert json.dumps(plain.message())

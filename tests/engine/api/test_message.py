"""A message is the same whole and in pieces: thought, content and calls, each where a client looks for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.message import MessageParts, delta_of
from engine.api.thought import Opening
from reference.serving.request import FinishReason
from tests.engine.api.cuts import PLACES, cut

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "\n\n", " ", "hi", "<", "é"]),
    max_size=8,
).map("".join)
OPTIONS = st.fixed_dictionaries(
    {"opening": st.sampled_from(Opening), "separate_reasoning": st.booleans(), "with_calls": st.booleans()}
)


def made_of(texts: list[str], **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]], MessageParts]:
    """The message of these pieces, the deltas of its stream, and what made them."""
    parts = MessageParts(**options)
    pieces = [piece for text in texts for piece in parts.push(text, 1)] + parts.push("", 1, is_end=True)
    return parts.message(), [delta_of(piece) for piece in pieces], parts


def accumulated(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    for delta in deltas:
        for field, value in delta.items():
            if field == "tool_calls":
                ((call),) = value
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    calls.append({"type": call["type"], "function": dict(call["function"])})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            else:
                message[field] = (message.get(field) or "") + value
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{k: v for k, v in call.items() if k != "id"} for call in message.get("tool_calls", [])]
    return message | ({"tool_calls": calls} if calls else {})


@given(text=TEXTS, places=PLACES, options=OPTIONS)
def test_whole_and_in_pieces(text: str, places: list[int], options: dict[str, Any]) -> None:
    whole, _, _ = made_of([text], **options)
    message, deltas, _ = made_of(cut(text, places), **options)
    assert without_ids(message) == without_ids(whole) == accumulated(deltas)


@given(text=TEXTS, opening=st.sampled_from(Opening))
def test_what_is_not_looked_for_stays_in_the_content(text: str, opening: Opening) -> None:
    message, _, parts = made_of([text], opening=opening, separate_reasoning=False)
    assert message == {"role": "assistant", "content": text, "refusal": None}
    assert parts.finish_reason(FinishReason.STOP) == "stop"


def test_a_call_in_a_thought_is_none() -> None:
    text = f"<think>\n{CALL}\n</think>\n\nNo."
    for separate, content in ((True, "No."), (False, text)):
        message, _, parts = made_of([text], opening=Opening.EITHER, separate_reasoning=separate, with_calls=True)
        assert message["content"] == content and "tool_calls" not in message
        assert parts.finish_reason(FinishReason.STOP) == "stop"


@pytest.mark.parametrize(
    ("text", "content"),
    [("", ""), ("<think>\n\n</think>\n\n", None), ("<think>", None), (CALL, None), ("<think>\na\n</think>\n\nb", "b")],
)
def test_content_is_null_where_there_is_something_else(text: str, content: str | None) -> None:
    message, deltas, _ = made_of([text], opening=Opening.EITHER, with_calls=True)
    assert message["content"] == content
    assert any("content" in delta for delta in deltas) == (content is not None)


def test_calls_have_ids_of_their_own() -> None:
    _, deltas, _ = made_of([CALL, "\n", CALL], opening=Opening.CONTENT, with_calls=True)
    begun = [delta["tool_calls"][0] for delta in deltas if "id" in delta["tool_calls"][0]]
    assert [call["index"] for call in begun] == [0, 1]
    assert len({call["id"] for call in begun}) == 2 and all(call["id"].startswith("call_") for call in begun)
    assert begun[0]["function"] == {"name": "get_weather", "arguments": ""}


def test_the_reason_to_finish() -> None:
    _, _, parts = made_of([CALL], opening=Opening.CONTENT, with_calls=True)
    assert parts.finish_reason(FinishReason.STOP) == "tool_calls"
    assert parts.finish_reason(FinishReason.LENGTH) == "length"
    assert parts.finish_reason(None) is None


@pytest.mark.parametrize(
    ("texts", "number"),
    [
        (["<think>", "\n", "Why", "?", "\n", "</think>", "\n\n", "So"], 6),
        (["<think>", "\n", "Why"], 4),  # with the token that ends the answer
        (["<th", "ere>", "Why"], 0),
        (["So"], 0),
    ],
)
def test_tokens_of_the_thought(texts: list[str], number: int) -> None:
    assert made_of(texts, opening=Opening.EITHER)[2].reasoning_tokens == number
    json.dumps(made_of(texts, opening=Opening.EITHER)[0])

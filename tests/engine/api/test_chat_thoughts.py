"""Thinking on, off and absent, streamed and whole, finished and cut short: thought and content are told apart."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from engine.api.served import ServedModel
from tests.engine.api.conftest import Events, Post

PATH = "chat/completions"
THOUGHT = "<think>\nOne < two.\n\nSo 😀.\n</think>\n\nTwo.\n"

SWITCHES: dict[str, dict[str, Any]] = {
    "on": {"chat_template_kwargs": {"enable_thinking": True}},
    "off": {"chat_template_kwargs": {"enable_thinking": False}},
    "absent": {},
}


def say(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"say:{text}#"}], **fields}


def streamed(events: Events, **fields: Any) -> tuple[str | None, str | None, str]:
    """(reasoning, content, finish_reason), None for what never came."""
    joined: dict[str, str] = {}
    for event in events(PATH, **fields):
        (choice,) = event["choices"]
        for name in ("reasoning_content", "content"):
            if name in choice["delta"]:
                joined[name] = joined.get(name, "") + choice["delta"][name]
    return joined.get("reasoning_content"), joined.get("content"), choice["finish_reason"]


def whole(post: Post, **fields: Any) -> tuple[str | None, str | None, str]:
    (choice,) = post(PATH, **fields)["choices"]
    return choice["message"].get("reasoning_content"), choice["message"]["content"], choice["finish_reason"]


@pytest.mark.parametrize("cut_short", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("switch", SWITCHES)
def test_the_twelve(post: Post, events: Events, switch: str, stream: bool, cut_short: bool) -> None:
    text, expected = {
        ("off", False): ("Two.\n", (None, "Two.\n", "stop")),
        ("off", True): ("One </think> two", (None, "One </think> t", "length")),
    }.get((switch, cut_short), (THOUGHT, ("One < two.\n\nSo 😀.", "Two.\n", "stop")))
    limit: dict[str, Any] = {"max_tokens": 12} if cut_short else {}
    if cut_short and switch != "off":
        expected = ("One < ", None, "length")
    asked = say(text, **SWITCHES[switch], **limit)
    assert (streamed(events, **asked) if stream else whole(post, **asked)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.\n</think>\n\nTwo.", ("One.", "Two.", "stop")),
        ("One.", ("One.", None, "stop")),
        ("</think>\n\nTwo.", (None, "Two.", "stop")),
    ],
)
def test_a_template_that_begins_the_thought(post: Post, events: Events, text: str, expected: Any) -> None:
    asked = say(text, chat_template_kwargs={"always_think": True})
    assert whole(post, **asked) == streamed(events, **asked) == expected


@pytest.mark.parametrize("text", ["Two.", "Say <think> aloud.</think>", " <think>", "<thin"])
def test_no_thought_at_the_beginning_is_none(post: Post, events: Events, text: str) -> None:
    assert whole(post, **say(text)) == streamed(events, **say(text)) == (None, text, "stop")


def test_separate_reasoning_off_leaves_the_text_as_it_is(post: Post, events: Events) -> None:
    asked = say(THOUGHT, separate_reasoning=False)
    assert whole(post, **asked) == streamed(events, **asked) == (None, THOUGHT, "stop")


@pytest.mark.parametrize(("text", "number"), [("<think>\na\n</think>\n\nb", 14), ("b", 0), ("<think>\na", 8)])
def test_tokens_of_thoughts_are_counted(post: Post, events: Events, text: str, number: int) -> None:
    """`th` and `in` are tokens, so `<think>` takes 5 and `</think>` 6; an answer that is all thought ends in it."""
    counted = {"reasoning_tokens": number}
    assert post(PATH, **say(text))["usage"]["completion_tokens_details"] == counted
    last = events(PATH, **say(text), stream_options={"include_usage": True})[-1]
    assert last["usage"]["completion_tokens_details"] == counted
    two = post(PATH, **say(text), n=2)["usage"]["completion_tokens_details"]
    assert two == {"reasoning_tokens": 2 * number}


def test_samples_have_thoughts_of_their_own(post: Post, events: Events) -> None:
    choices = post(PATH, **say(THOUGHT), n=2)["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["Two.\n"] * 2
    said = {0: "", 1: ""}
    for event in events(PATH, **say(THOUGHT), n=2):
        (choice,) = event["choices"]
        said[choice["index"]] += choice["delta"].get("reasoning_content", "")
    assert said == dict.fromkeys(said, "One < two.\n\nSo 😀.")


def test_every_token_has_its_log_probability(post: Post, events: Events) -> None:
    entries = post(PATH, **say(THOUGHT), logprobs=True)["choices"][0]["logprobs"]["content"]
    text = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert text.decode() == THOUGHT + "<|im_end|>"
    of_stream = [
        entry
        for event in events(PATH, **say(THOUGHT), logprobs=True)
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert of_stream == entries


def test_the_openai_package_gets_both_and_sends_them_back(openai: OpenAI, served: ServedModel) -> None:
    messages: Any = say(THOUGHT)["messages"]
    message = openai.chat.completions.create(model="obedient", messages=messages).choices[0].message
    with openai.chat.completions.stream(model="obedient", messages=messages) as stream:
        of_stream = stream.get_final_completion().choices[0].message
    for one in (message, of_stream):
        assert one.content == "Two.\n" and one.model_extra is not None
        assert one.model_extra["reasoning_content"] == "One < two.\n\nSo 😀."
        again: Any = [*messages, one, {"role": "user", "content": "and?"}]
        assert openai.chat.completions.create(model="obedient", messages=again).choices[0].finish_reason == "stop"

"""/v1/chat/completions renders the conversation, and answers whole and in pieces, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI

from engine.api.served import ServedModel
from tests.engine.api.conftest import Events, Post
from tests.engine.text_side import EMPTY_THOUGHT

PATH = "chat/completions"


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def content(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def prompt_tokens(served: ServedModel, prompt: str) -> int:
    return len(served.tokenizer.encode(prompt))


def test_an_answer(openai: OpenAI, served: ServedModel) -> None:
    messages: Any = user("say:Hello 😀!#")
    answer = openai.chat.completions.create(model="obedient", messages=messages)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.message.refusal) == ("assistant", "Hello 😀!", None)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert answer.usage is not None
    prompt = "<|im_start|>user\nsay:Hello 😀!#<|im_end|>\n<|im_start|>assistant\n"
    assert answer.usage.prompt_tokens == prompt_tokens(served, prompt)


def test_a_message_goes_back_as_the_client_got_it(openai: OpenAI) -> None:
    messages: Any = user("say:One#")
    messages.append(openai.chat.completions.create(model="obedient", messages=messages).choices[0].message)
    messages.append({"role": "user", "content": "and now?"})
    assert openai.chat.completions.create(model="obedient", messages=messages).choices[0].finish_reason == "stop"


def test_a_stream(openai: OpenAI) -> None:
    messages: Any = user("say:Hello 😀!#")
    chunks = list(
        openai.chat.completions.create(
            model="obedient", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == "Hello 😀!"
    assert [delta.content for delta in deltas].count("😀") == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 5


def test_openais_own_stream_helper(openai: OpenAI) -> None:
    messages: Any = user("say:Hello!#")
    with openai.chat.completions.stream(model="obedient", messages=messages, logprobs=True) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content) == 7


def test_who_says_what(post: Post, served: ServedModel) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say:"}, {"type": "text", "text": "Hi#"}]},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "user", "content": ""},
    ]
    answer = post(PATH, messages=messages)
    assert content(answer) == "Hi"
    prompt = (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nsay:Hi#<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert answer["usage"]["prompt_tokens"] == prompt_tokens(served, prompt)


def test_thinking_is_the_templates(post: Post, served: ServedModel) -> None:
    off, on, absent = (
        post(PATH, messages=user("say:Hi#"), **kwargs)
        for kwargs in (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": True}},
            {},
        )
    )
    assert content(off) == content(on) == content(absent) == "Hi"
    extra = prompt_tokens(served, EMPTY_THOUGHT)
    assert off["usage"]["prompt_tokens"] == on["usage"]["prompt_tokens"] + extra
    assert on["usage"] == absent["usage"]


def test_the_answer_may_fill_the_context(post: Post) -> None:
    answer = post(PATH, messages=user("babble" * 50), ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 400
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_its_length_by_both_names(post: Post, name: str) -> None:
    answer = post(PATH, messages=user("babble"), ignore_eos=True, **{name: 3})
    assert answer["usage"]["completion_tokens"] == 3


def test_samples_and_seeds(post: Post) -> None:
    asked: dict[str, Any] = {"messages": user("babble"), "n": 2, "seed": 3, "max_tokens": 9}
    first, second = post(PATH, **asked), post(PATH, **asked)
    assert first["choices"] == second["choices"]
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert len(set(texts)) == 2
    assert [choice["index"] for choice in first["choices"]] == [0, 1]
    assert first["id"] != second["id"]


def test_openai_clients_may_say_who_they_are(openai: OpenAI) -> None:
    messages: Any = user("say:Hi#")
    answer = openai.chat.completions.create(
        model="obedient",
        messages=messages,
        user="someone",
        safety_identifier="someone",
        metadata={"job": "7"},
        response_format={"type": "text"},
        tool_choice="none",
        stop=None,
    )
    assert answer.choices[0].message.content == "Hi"


def test_without_a_name_the_served_model_answers(http: httpx.Client, post: Post) -> None:
    assert post(PATH, messages=user("say:Hi#"))["model"] == "obedient"
    assert post(PATH, messages=user("say:Hi#"), model=None)["model"] == "obedient"


ASKED = st.fixed_dictionaries(
    {
        "messages": st.text("ab😀é語 XYZ\n", max_size=12).map("say:{}#".format).map(user) | st.just(user("babble")),
        "seed": st.integers(0, 99),
        "max_tokens": st.integers(1, 16),
        "n": st.integers(1, 3),
    },
    optional={
        "stop": st.lists(st.text("abX😀é", min_size=1, max_size=3), max_size=4),
        "logprobs": st.booleans(),
        "ignore_eos": st.booleans(),
    },
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ASKED)
def test_streamed_pieces_joined_are_the_whole(post: Post, events: Events, asked: dict[str, Any]) -> None:
    whole = post(PATH, **asked)
    joined = [{"content": "", "logprobs": []} for _ in range(asked["n"])]
    for event in events(PATH, **asked):
        [choice] = event["choices"]
        joined[choice["index"]]["content"] += choice["delta"].get("content", "")
        joined[choice["index"]]["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
        joined[choice["index"]]["finish_reason"] = choice["finish_reason"]
    for choice, pieces in zip(whole["choices"], joined, strict=True):
        assert pieces["content"] == choice["message"]["content"]
        assert pieces["finish_reason"] == choice["finish_reason"]
        assert pieces["logprobs"] == (choice["logprobs"] or {"content": []})["content"]

"""Tools in a chat: how they are asked for, how the model is shown them, and what clients get of its calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI
from transformers.utils.chat_template_utils import render_jinja_template

from engine.api import responses
from engine.api.body import check
from engine.api.chat import prompt_of
from engine.api.protocol import ChatRequest
from engine.api.served import ServedModel
from engine.checkpoint.resolve import BUILTIN_DIRECTORY
from tests.engine.api.conftest import Events, Post
from tests.engine.api.test_errors import refused
from tests.engine.fakes import served_model

PATH = "chat/completions"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "sky",
        "description": "The sky over a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
PARIS, OSLO = '{"at": "P"}', '{"at":"O 😀"}'


@pytest.fixture(scope="module")
def served(text_side: Path) -> ServedModel:
    return served_model(text_side, max_model_len=1500)


def call(arguments: str, name: str = "sky") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"say:{text}#"}], "tools": [WEATHER, TIME], **fields}


def made(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", [])]


def accumulated(events: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The message and the finish_reason that the events of one choice amount to."""
    message: dict[str, Any] = {}
    for event in events:
        (choice,) = event["choices"]
        for name in ("role", "content", "reasoning_content"):
            if name in choice["delta"]:
                message[name] = message.get(name, "") + choice["delta"][name]
        for one in choice["delta"].get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if one["index"] == len(calls):
                assert one["id"].startswith("call_") and one["type"] == "function"
                assert one["function"]["arguments"] == ""
                calls.append({"function": dict(one["function"])})
            else:
                assert one.keys() == {"index", "function"} and one["function"].keys() == {"arguments"}
                calls[one["index"]]["function"]["arguments"] += one["function"]["arguments"]
    return message, choice["finish_reason"]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (call(PARIS), None, [("sky", PARIS)]),
        (f"See.\n{call(PARIS)}\n{call(OSLO)}", "See.", [("sky", PARIS), ("sky", OSLO)]),
        (f"<think>\n{call(PARIS)}\n</think>\n\n{call(OSLO)}", None, [("sky", OSLO)]),
        (call("{}", "unknown"), None, [("unknown", "{}")]),
        ("Hello <tool_call> there", "Hello <tool_call> there", []),
    ],
)
def test_calls_whole_and_streamed(post: Post, events: Events, text: str, content: str | None, calls: Any) -> None:
    answer = post(PATH, **ask(text))
    responses.ChatCompletion.model_validate(answer)  # as it is described
    (choice,) = answer["choices"]
    message, reason = accumulated(events(PATH, **ask(text)))
    assert choice["message"]["content"] == message.get("content") == content
    assert made(choice["message"]) == made(message) == calls
    assert choice["finish_reason"] == reason == ("tool_calls" if calls else "stop")


def test_a_call_that_the_budget_cuts_short(post: Post, events: Events) -> None:
    asked = ask(call(PARIS), max_tokens=len('<tool_call> {"name": "sky", "arguments": {"at'))
    (choice,) = post(PATH, **asked)["choices"]
    message, reason = accumulated(events(PATH, **asked))
    assert made(choice["message"]) == made(message) and choice["finish_reason"] == reason == "length"
    ((_, arguments),) = made(message)
    assert PARIS.startswith(arguments) and 0 < len(arguments) < len(PARIS)


def test_a_call_that_a_stop_string_cuts_short_is_not_to_be_made(post: Post, events: Events) -> None:
    for stop, reason in (("at", "stop"), ("no such", "tool_calls")):
        asked = ask(call(PARIS), stop=[stop])
        (choice,) = post(PATH, **asked)["choices"]
        message, streamed = accumulated(events(PATH, **asked))
        assert made(choice["message"]) == made(message) and choice["finish_reason"] == streamed == reason


def test_a_forced_call_that_is_cut_short_in_its_head_is_no_content(post: Post, events: Events) -> None:
    asked = ask(call(PARIS), tool_choice="required", max_tokens=15)
    (choice,) = post(PATH, **asked)["choices"]
    message, reason = accumulated(events(PATH, **asked))
    assert not choice["message"]["content"] and not message.get("content")
    assert made(choice["message"]) == made(message) == [] and choice["finish_reason"] == reason == "length"


def test_without_tools_nothing_is_a_call(post: Post, events: Events) -> None:
    for fields in ({"tools": []}, {"tool_choice": "none"}):
        (choice,) = post(PATH, **ask(call(PARIS), **fields))["choices"]
        assert choice["message"]["content"] == call(PARIS) and choice["finish_reason"] == "stop"
        assert accumulated(events(PATH, **ask(call(PARIS), **fields)))[0]["content"] == call(PARIS)


FRAGMENTS = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "\n", "a", "{", call(PARIS), "é"])
ASKED = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 90), "logprobs": st.booleans(), "separate_reasoning": st.booleans()}
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(FRAGMENTS, max_size=5).map("".join), fields=ASKED)
def test_a_stream_amounts_to_the_whole(post: Post, events: Events, text: str, fields: dict[str, Any]) -> None:
    (choice,) = post(PATH, **ask(text, **fields))["choices"]
    streamed = events(PATH, **ask(text, **fields))
    message, reason = accumulated(streamed)
    assert made(message) == made(choice["message"]) and reason == choice["finish_reason"]
    assert message.get("content") == choice["message"]["content"]
    assert message.get("reasoning_content") == choice["message"].get("reasoning_content")
    if fields["logprobs"]:
        entries = [entry for e in streamed for entry in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert entries == choice["logprobs"]["content"]


@pytest.mark.parametrize(
    "text", [f"A {call(PARIS)}\n{call(OSLO)} B", f"<think>\n{call(OSLO)}\n</think>\n\n{call(PARIS)}\nC"]
)
def test_not_parallel_ends_with_the_first_call(post: Post, events: Events, served: ServedModel, text: str) -> None:
    asked = ask(text, parallel_tool_calls=False)
    answer = post(PATH, **asked)
    (choice,) = answer["choices"]
    message, reason = accumulated(events(PATH, **asked))
    assert made(choice["message"]) == made(message) == [("sky", PARIS)]
    assert choice["finish_reason"] == reason == "tool_calls"
    until_its_end = text[: text.index(call(PARIS)) + len(call(PARIS))]
    assert answer["usage"]["completion_tokens"] == len(served.tokenizer.encode(until_its_end)) + 1
    assert made(post(PATH, **ask("Hi", parallel_tool_calls=False))["choices"][0]["message"]) == []


def test_the_tools_are_shown_as_they_were_given(served: ServedModel) -> None:
    tools = [{"function": {"parameters": None, "name": "f"}, "type": "function"}, WEATHER]
    shown = "".join(json.dumps(tool) + "\n" for tool in tools)
    for choice, expected in ((None, shown), ("none", None)):
        body = check(ChatRequest, ask("Hi", tools=tools, tool_choice=choice))
        prompt = served.tokenizer.decode(prompt_of(served, body), skip_special_tokens=False)
        assert (f"# Tools\n{expected}<|im_end|>" in prompt) == (expected is not None) == ("# Tools" in prompt)


def test_tools_are_counted_by_tokenize_too(http: httpx.Client, post: Post) -> None:
    fields = ask("Hi")
    assert http.post("/tokenize", json=fields).json()["count"] == post(PATH, **fields)["usage"]["prompt_tokens"]


@pytest.fixture(scope="module")
def dense() -> ServedModel:
    return served_model(BUILTIN_DIRECTORY / "dense")


@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_conversation_with_tools_is_the_prompt_of_transformers(dense: ServedModel, thinking: bool | None) -> None:
    arguments = {"city": "Zürich <&>", "days": [1, 2.5, None]}
    called = {"name": "sky", "arguments": arguments}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I look.",
            "tool_calls": [{"id": id_, "type": "function", "function": called} for id_ in "ab"],
        },
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "rain"},
    ]
    variables = {} if thinking is None else {"enable_thinking": thinking}
    plain = [message | {"content": message["content"] or ""} for message in messages]
    template = json.loads((BUILTIN_DIRECTORY / "dense" / "tokenizer_config.json").read_text())["chat_template"]
    rendered: Any = render_jinja_template(  # what apply_chat_template calls
        [plain], chat_template=template, tools=[WEATHER, TIME], add_generation_prompt=True, **variables
    )
    expected = rendered[0][0]

    written = {**called, "arguments": json.dumps(arguments)}
    calls = [{**one, "function": written} for one in messages[2]["tool_calls"]]
    sent = [*messages[:2], messages[2] | {"tool_calls": calls}, messages[4], messages[3]]  # in any order
    body = check(ChatRequest, {"messages": sent, "tools": [WEATHER, TIME], "chat_template_kwargs": variables})
    assert dense.tokenizer.decode(prompt_of(dense, body), skip_special_tokens=False) == expected


def test_the_openai_package(openai: OpenAI) -> None:
    asked: Any = {"model": "obedient", **ask(f"See.\n{call(PARIS)}\n{call(OSLO)}")}
    message = openai.chat.completions.create(**asked).choices[0].message
    with openai.chat.completions.stream(**asked | {"tools": [WEATHER]}) as stream:
        events = [event.type for event in stream]
        helped: Any = stream.get_final_completion().choices[0].message
    assert events.count("tool_calls.function.arguments.done") == 2
    for one in (message, helped):
        assert one.content == "See."
        assert [(c.function.name, c.function.arguments) for c in one.tool_calls] == [("sky", PARIS), ("sky", OSLO)]
        results = [{"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in one.tool_calls]
        again = asked | {"messages": [*asked["messages"], one, *results]}
        assert openai.chat.completions.create(**again).choices[0].finish_reason == "tool_calls"


def test_the_openai_package_in_a_coroutine(http: httpx.Client) -> None:
    asked: Any = {"model": "obedient", **ask(call(PARIS))}

    async def scenario() -> None:
        url = str(http.base_url.join("/v1"))
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
            whole = await client.chat.completions.create(**asked)
            assert whole.choices[0].finish_reason == "tool_calls"
            async with client.chat.completions.stream(**asked | {"tools": [WEATHER]}) as stream:
                final: Any = await stream.get_final_completion()
            assert final.choices[0].message.tool_calls[0].function.arguments == PARIS
            name, arguments = "", ""
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                for delta in chunk.choices[0].delta.tool_calls or []:
                    assert delta.function is not None
                    name, arguments = name + (delta.function.name or ""), arguments + (delta.function.arguments or "")
            assert (name, arguments) == ("sky", PARIS)

    asyncio.run(scenario())


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


NAMED = {"type": "function", "function": {"name": "other"}}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": WEATHER}),
        ("tools", {"tools": [WEATHER, WEATHER]}),
        ("tools", {"tools": [WEATHER] * 129}),
        ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
        ("tools[0].function", {"tools": [{"type": "function"}]}),
        ("tools[0].function.name", {"tools": function(name="a b")}),
        ("tools[0].function.name", {"tools": function(name="")}),
        ("tools[0].function.name", {"tools": function(name="a" * 65)}),
        ("tools[0].function.name", {"tools": function(name="é")}),
        ("tools[0].function.parameters", {"tools": function(parameters=[])}),
        ("tools[0].function.strict", {"tools": function(strict="yes")}),
        ("tools[0].function.surprise", {"tools": function(surprise=1)}),
        ("tool_choice", {"tool_choice": "maybe"}),
        ("tool_choice", {"tool_choice": NAMED}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools"}}),
        ("tool_choice", {"tool_choice": 5}),
        ("tool_choice", {"tools": [], "tool_choice": "auto"}),
        ("tool_choice", {"tools": [], "tool_choice": "required"}),
        ("tool_choice", {"tools": [], "tool_choice": NAMED}),
        ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("min_tokens", {"parallel_tool_calls": False, "min_tokens": 2}),
        ("ignore_eos", {"parallel_tool_calls": False, "ignore_eos": True}),
        ("allowed_token_ids", {"parallel_tool_calls": False, "allowed_token_ids": [1]}),
        ("allowed_token_ids", {"tool_choice": "required", "allowed_token_ids": [1]}),
        ("tools", {"tools": function(strict=True)}),  # its tokenizer has no tokens for calls
        ("separate_reasoning", {"separate_reasoning": "no"}),
    ],
)
def test_what_is_wrong_is_named(http: httpx.Client, param: str, fields: dict[str, Any]) -> None:
    error = refused(http, PATH, ask("Hi") | fields)
    assert error["param"] == param and param in error["message"]


CALLED = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("param", "turn"),
    [
        ("messages[1].tool_call_id", {"role": "tool", "content": "x"}),
        ("messages[1].content", {"role": "tool", "tool_call_id": "a"}),
        ("messages[1].tool_call_id", {"role": "user", "content": "x", "tool_call_id": "a"}),
        ("messages[1].tool_calls", {"role": "user", "content": "x", "tool_calls": CALLED}),
        ("messages[1].reasoning_content", {"role": "user", "content": "x", "reasoning_content": "y"}),
        ("messages[1].tool_calls[0].id", {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}),
        ("messages[1].tool_calls[0].type", {"role": "assistant", "tool_calls": [CALLED[0] | {"type": "custom"}]}),
        ("messages[1].name", {"role": "user", "content": "x", "name": 5}),
        ("messages", {"role": "tool", "content": "x", "tool_call_id": "unknown"}),
    ],
)
def test_what_is_wrong_in_a_message_is_named(http: httpx.Client, param: str, turn: dict[str, Any]) -> None:
    error = refused(http, PATH, {"messages": [{"role": "user", "content": "a"}, turn]})
    assert error["param"] == param and (param in error["message"] or "messages[1].tool_call_id" in error["message"])


def test_a_template_without_a_place_for_them(text_side: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((text_side / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role + m.content }}{% endfor %}")
    served = served_model(tmp_path)
    user = {"role": "user", "content": "x"}
    for param, fields in (
        ("tools", {"messages": [user], "tools": [WEATHER]}),
        ("messages[1].tool_calls", {"messages": [user, {"role": "assistant", "tool_calls": CALLED}]}),
    ):
        with pytest.raises(ValueError, match="has no place for") as raised:
            prompt_of(served, check(ChatRequest, fields))
        assert raised.value.param == param  # type: ignore[attr-defined]

"""A real model, if a small one, behind the API: what it says under a schema is of the schema, and a client can tell."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field
from rich.console import Console

from engine.api.app import create_app
from engine.commands.load import add_model_options, load_model
from reference.model.builtin import tool_use
from tests.engine.serving import serving


class Person(BaseModel):
    name: str = Field(pattern="^[A-Z][a-z]{1,8}$")
    age: int = Field(ge=0, le=120)
    mood: Literal["happy", "sad"]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    """Of the built-in dense model, with memory for what is asked here: less is compiled and touched."""
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    options = parser.parse_args(["dense", "--max-model-len", "1024"])
    app = create_app(load_model(options, Console(quiet=True)).served())
    with serving(app) as url, OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


ASKED = {
    "model": "dense",
    "messages": [{"role": "user", "content": "Tell me about a girl named Lily."}],
    "response_format": Person,
    "max_tokens": 200,
    "seed": 1,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}


def test_whole_and_as_a_stream(client: OpenAI) -> None:
    whole = client.chat.completions.parse(**ASKED)  # type: ignore[arg-type]
    assert whole.choices[0].finish_reason == "stop"
    assert isinstance(whole.choices[0].message.parsed, Person)
    with client.chat.completions.stream(**ASKED) as stream:  # type: ignore[arg-type]
        pieces = [event.delta for event in stream if event.type == "content.delta"]
    assert len(pieces) > 5 and "".join(pieces) == whole.choices[0].message.content


def test_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(
        model="dense", prompt="Lily is", max_tokens=50, extra_body={"guided_regex": "( [a-z]{2,6}){3}[.]"}
    )
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].text.count(" ") == 3


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time"}},
]
FORCED = {"model": "dense", "messages": [{"role": "user", "content": "How is Rome?"}], "tools": TOOLS, "seed": 3}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
def test_a_call_is_made_whole_and_as_a_stream(client: OpenAI, choice: object) -> None:
    asked = FORCED | {"tool_choice": choice, "max_tokens": 60, "parallel_tool_calls": False}
    answer = client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    [call] = answer.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.id.startswith("call_") and isinstance(arguments, dict)
    if choice != "required":
        assert call.function.name == "get_weather" and arguments["city"] in ("Paris", "Rome")
    with client.chat.completions.stream(**asked) as stream:  # type: ignore[arg-type]
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)


def test_the_answer_to_a_call_is_sent_back(client: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    turns = [
        {"role": "user", "content": "How is Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"weather": "sunny"}'},
    ]
    answer = client.chat.completions.create(model="dense", messages=turns, tools=TOOLS, max_tokens=20, temperature=0)  # type: ignore[call-overload]
    assert answer.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "unknown"}}}, "tool_choice"),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            },
            "tools",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_with_tools_is_named(client: OpenAI, fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(**FORCED | fields)  # type: ignore[call-overload]
    assert refused.value.param == param


@pytest.mark.parametrize("thinking", [False, True])
def test_it_calls_a_tool_that_answers_the_question(client: OpenAI, thinking: bool) -> None:
    tools = [tool_use.TOOLS["get_time"], tool_use.TOOLS["get_weather"]]
    asked: dict[str, Any] = {
        "model": "dense",
        "messages": [{"role": "user", "content": "What is the weather in Paris?" + " /think" * thinking}],
        "tools": tools,
        "temperature": 0,
        "max_tokens": 90,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}},
    }
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert ("reasoning_content" in (choice.message.model_extra or {})) == thinking
    if thinking:
        return
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 7, "sky": "foggy"}'}
    again = client.chat.completions.create(**asked | {"messages": [*asked["messages"], choice.message, result]})
    assert again.choices[0].finish_reason == "stop" and "foggy" in (again.choices[0].message.content or "")


def test_a_strict_tool_is_called_as_its_schema_says(client: OpenAI) -> None:
    """One that the model calls by another name, with other arguments, if nothing holds it to them. As a stream for one
    call, whole for several."""
    known = tool_use.TOOLS["get_weather"]["function"]
    properties = {"place": known["parameters"]["properties"]["city"]}
    parameters = {**known["parameters"], "properties": properties, "required": ["place"], "additionalProperties": False}
    function = {**known, "name": "get_weather_now", "parameters": parameters, "strict": True}
    asked: dict[str, Any] = {
        "model": "dense",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0,
        "max_tokens": 90,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    }
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion()
    for answer in (streamed, client.chat.completions.parse(**asked, parallel_tool_calls=True)):
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls or []
        assert choice.finish_reason == "tool_calls"
        assert call.function.name == "get_weather_now" and call.function.parsed_arguments == {"place": "Paris"}
    loose = [{"type": "function", "function": {**function, "strict": False}}]
    (choice,) = client.chat.completions.create(**asked | {"tools": loose}).choices
    assert [call.function.name for call in choice.message.tool_calls or []] != ["get_weather_now"]

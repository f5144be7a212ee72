"""Whatever is wrong with a request is a 400 that names it, in OpenAI's shape, and the server lives on."""

from __future__ import annotations

from typing import Any

import httpx
import openai as openai_package
import pytest
from openai import OpenAI

from engine.api.protocol import NOT_IN_CHAT, NOT_IN_COMPLETIONS, NOT_IN_MESSAGE
from tests.engine.api.conftest import Post

COMPLETIONS: dict[str, Any] = {"model": "obedient", "prompt": "say:Hi#"}
CHAT: dict[str, Any] = {"model": "obedient", "messages": [{"role": "user", "content": "say:Hi#"}]}
ENDPOINTS = {"completions": COMPLETIONS, "chat/completions": CHAT}


def refused(http: httpx.Client, path: str, fields: dict[str, Any], status: int = 400) -> dict[str, Any]:
    response = http.post(f"/v1/{path}", json=fields)
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "invalid_request_error"
    return body["error"]


def test_a_message_has_the_name_that_the_client_knows(http: httpx.Client) -> None:
    error = refused(http, "completions", COMPLETIONS | {"prompt": [99999]})
    assert error["param"] == "prompt" and error["message"].startswith("prompt: there is no token 99999")


def field_of(param: str) -> str:
    return param.split("[", maxsplit=1)[0].split(".", maxsplit=1)[0]


BOTH = [
    ("temperature", -0.1),
    ("temperature", "0.7"),
    ("temperature", True),
    ("temperature", [1]),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -1),
    ("min_p", 2),
    ("n", 0),
    ("n", 129),
    ("n", 9999),
    ("n", "two"),
    ("n", True),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"one": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"٣": 1}),
    ("logit_bias", {"9" * 5000: 1}),
    ("logit_bias", {"01": 1}),
    ("logit_bias", {"1": True}),
    ("logit_bias", {"99999": 1}),
    ("logit_bias", [1]),
    ("logit_bias", {"1": "much"}),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("seed", 1.5),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", "many"),
    ("min_tokens", -1),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["a"] * 17),
    ("stop", 5),
    ("stop[1]", ["a", 5]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [99999]),
    ("stop_token_ids[0]", ["a"]),
    ("stop_token_ids", 5),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", [99999]),
    ("allowed_token_ids[0]", ["a"]),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", True),
    ("priority", -101),
    ("priority", 101),
    ("priority", 1.5),
    ("ignore_eos", "yes"),
    ("include_stop_str_in_output", 1),
    ("skip_special_tokens", "no"),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("user", 5),
    ("metadata.a", {"a": 1}),
    ("metadata", {str(number): "a" for number in range(17)}),
    ("model", 5),
    ("surprise", 1),
    ("surprise", None),
]
ONLY_COMPLETIONS = [
    ("prompt", 5),
    ("prompt", ""),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", [1.5]),
    ("prompt", [True]),
    ("prompt", [[1], 2]),
    ("prompt", ["a", None]),
    ("prompt", ["a", ""]),
    ("prompt", [-1]),
    ("prompt", [99999]),
    ("prompt", ["a"] * 2049),
    ("prompt", {"text": "a"}),
    ("prompt", "a" * 400),
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", True),
    ("echo", "yes"),
    ("messages", []),
    ("max_completion_tokens", 5),
]
ONLY_CHAT = [
    ("messages", []),
    ("messages", "hello"),
    ("messages", {"role": "user"}),
    ("messages[0]", ["hello"]),
    ("messages[0].role", [{"content": "x"}]),
    ("messages[0].role", [{"role": "robot", "content": "x"}]),
    ("messages[0].tool_call_id", [{"role": "tool", "content": "x"}]),
    ("messages[0].content", [{"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": 5}]),
    ("messages[0].content[0].type", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages[0].content[1].text", [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text"}]}]),
    ("messages[0].content[0].x", [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]),
    ("messages[0].surprise", [{"role": "user", "content": "x", "surprise": 1}]),
    ("messages", [{"role": "user", "content": "a" * 400}]),
    ("messages", [{"role": "user", "content": "refuse me"}]),
    ("max_completion_tokens", 0),
    ("logprobs", 1),
    ("top_logprobs", 21),
    ("top_logprobs", 2),
    ("chat_template_kwargs", {"enable_thinking": True, "messages": []}),
    ("chat_template_kwargs", {"tools": []}),
    ("chat_template_kwargs", {"enable_thoughts": True}),
    ("chat_template_kwargs", []),
    ("prompt", "hello"),
]
OBFUSCATE = {"include_obfuscation": True}
CASES = [
    *((path, name, {field_of(name): value}) for path in ENDPOINTS for name, value in BOTH),
    *(("completions", name, {field_of(name): value}) for name, value in ONLY_COMPLETIONS),
    *(("chat/completions", name, {field_of(name): value}) for name, value in ONLY_CHAT),
    ("completions", "min_tokens", {"max_tokens": 3, "min_tokens": 4}),
    ("completions", "prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    ("chat/completions", "prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    ("completions", "best_of", {"best_of": True}),
    ("completions", "prompt", {"prompt": ["a"] * 17, "n": 128}),
    ("chat/completions", "top_logprobs", {"logprobs": False, "top_logprobs": 1}),
    ("chat/completions", "max_completion_tokens", {"max_tokens": 3, "max_completion_tokens": 3}),
    ("completions", "stream_options.surprise", {"stream": True, "stream_options": {"surprise": True}}),
    ("completions", "stream_options.include_obfuscation", {"stream": True, "stream_options": OBFUSCATE}),
]


@pytest.mark.parametrize(("path", "param", "fields"), CASES, ids=str)
def test_a_bad_parameter_is_named(http: httpx.Client, path: str, param: str, fields: dict[str, Any]) -> None:
    error = refused(http, path, ENDPOINTS[path] | fields)
    assert error["param"] == param
    # What the core or the template says of a conversation speaks of the prompt or the conversation.
    assert field_of(param) in error["message"] or param == "messages", error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "param"), [("completions", "prompt"), ("chat/completions", "messages")])
def test_a_missing_prompt(http: httpx.Client, path: str, param: str, stream: bool) -> None:
    assert refused(http, path, {"model": "obedient", "stream": stream})["message"] == f"{param} is missing"


def test_what_the_core_refuses_is_a_400_in_a_stream_too(http: httpx.Client) -> None:
    assert refused(http, "completions", COMPLETIONS | {"prompt": "a" * 400, "stream": True})["param"] == "prompt"


ASKING = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "response_format": {"type": "json_object"},
    "best_of": 2,
    "suffix": "the end",
    "functions": [{"name": "f"}],
    "modalities": ["audio"],
    "echo": True,
}


@pytest.mark.parametrize(
    ("path", "param"),
    [*(("completions", name) for name in NOT_IN_COMPLETIONS), *(("chat/completions", name) for name in NOT_IN_CHAT)],
)
def test_what_is_not_supported_says_so(http: httpx.Client, path: str, param: str) -> None:
    error = refused(http, path, ENDPOINTS[path] | {param: ASKING.get(param, {"some": "thing"})})
    instead = {"functions": "; use tools", "function_call": "; use tool_choice"}.get(param, "")
    assert (error["message"], error["param"]) == (f"{param} is not supported{instead}", param)
    assert error["code"] == "unsupported_parameter"


@pytest.mark.parametrize("param", NOT_IN_MESSAGE)
def test_what_is_not_supported_in_a_message_says_so(http: httpx.Client, param: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", param: "something"}]
    error = refused(http, "chat/completions", {"messages": messages})
    instead = "; use tool_calls" if param == "function_call" else ""
    assert error["message"] == f"messages[1].{param} is not supported{instead}"
    assert error["param"] == f"messages[1].{param}"


@pytest.mark.parametrize(("path", "table"), [("completions", NOT_IN_COMPLETIONS), ("chat/completions", NOT_IN_CHAT)])
def test_what_asks_for_nothing_is_taken(post: Post, path: str, table: dict[str, tuple[Any, ...]]) -> None:
    post(path, **ENDPOINTS[path], **{name: values[0] for name, values in table.items() if values})
    post(path, **ENDPOINTS[path], **dict.fromkeys(table))


def test_a_slip_of_the_pen_gets_a_hint(http: httpx.Client) -> None:
    message = refused(http, "completions", COMPLETIONS | {"temprature": 1})["message"]
    assert message == "unknown parameter 'temprature'; did you mean 'temperature'?"


def test_a_long_name_is_refused_without_a_search_for_a_hint(http: httpx.Client) -> None:
    message = refused(http, "completions", COMPLETIONS | {"temperature" + "e" * 100: 1})["message"]
    assert "did you mean" not in message


NO_JSON_OBJECTS = [
    b"",
    b"{",
    b'{"prompt": "a",}',
    b"null",
    b"[]",
    b'"a"',
    b"\xff",
    b'{"prompt": NaN}',
    b'{"prompt": "\\ud800"}',  # a lone surrogate
    b"[" * 9999,
]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("body", NO_JSON_OBJECTS, ids=lambda body: repr(body[:20]))
def test_a_body_that_is_no_json_object(http: httpx.Client, path: str, body: bytes) -> None:
    response = http.post(f"/v1/{path}", content=body)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


def test_an_unknown_model_is_a_404_that_lists_the_served_one(openai: OpenAI) -> None:
    messages: Any = CHAT["messages"]
    with pytest.raises(openai_package.NotFoundError) as caught:
        openai.chat.completions.create(model="gpt-9", messages=messages)
    assert "'obedient'" in str(caught.value)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_openais_client_reads_our_errors(openai: OpenAI) -> None:
    with pytest.raises(openai_package.BadRequestError) as caught:
        openai.completions.create(model="obedient", prompt="a", temperature=-1)
    assert caught.value.param == "temperature"


def test_the_server_lives_on(post: Post) -> None:
    assert post("completions", **COMPLETIONS)["choices"][0]["text"] == "Hi"

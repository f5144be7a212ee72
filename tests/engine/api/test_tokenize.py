"""/tokenize gives exactly what the model reads, /detokenize its text."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api.served import ServedModel
from tests.engine.api.conftest import Post


def ask(http: httpx.Client, path: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    response = http.post(path, json=fields)
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    return body if status == 200 else body["error"]


def test_a_text(http: httpx.Client, served: ServedModel) -> None:
    ids = served.tokenizer.encode("the é<|im_end|>")
    expected = {"count": len(ids), "max_model_len": 400, "tokens": ids, "token_strs": None}
    assert ask(http, "/tokenize", prompt="the é<|im_end|>") == expected
    named = ask(http, "/tokenize", model="obedient", prompt="the é<|im_end|>", return_token_strs=True)
    assert named["token_strs"] == ["th", "e", " ", "bytes:\\xc3", "bytes:\\xa9", "<|im_end|>"]
    assert ask(http, "/tokenize", prompt="")["tokens"] == []


TALKS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "say:Hi#"}]},
    {"messages": [{"role": "system", "content": "é"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"enable_thinking": False}},
]


@pytest.mark.parametrize("talk", TALKS, ids=str)
def test_a_conversation_is_the_prompt_of_its_chat(http: httpx.Client, post: Post, talk: dict[str, Any]) -> None:
    told = ask(http, "/tokenize", **talk)
    answer = post("chat/completions", **talk, prompt_logprobs=0, max_tokens=1)
    assert told["count"] == answer["usage"]["prompt_tokens"]
    assert told["tokens"][1:] == [int(token_id) for entry in answer["prompt_logprobs"][1:] for token_id in entry]


def test_the_opening_of_the_answer_may_be_left_out(http: httpx.Client) -> None:
    whole = ask(http, "/tokenize", **TALKS[0])["tokens"]
    without = ask(http, "/tokenize", **TALKS[0], add_generation_prompt=False)["tokens"]
    assert ask(http, "/detokenize", tokens=whole)["prompt"].endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert whole[: len(without)] == without
    assert ask(http, "/detokenize", tokens=without)["prompt"].endswith("say:Hi#<|im_end|>\n")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_there_and_back_again(http: httpx.Client, text: str) -> None:
    tokens = ask(http, "/tokenize", prompt=text)["tokens"]
    assert ask(http, "/detokenize", tokens=tokens)["prompt"] == text


@pytest.mark.parametrize(
    ("path", "param", "fields"),
    [
        ("/tokenize", "prompt", {}),
        ("/tokenize", "prompt", {"prompt": None, "messages": None}),
        ("/tokenize", "prompt", {"prompt": ["a"]}),
        ("/tokenize", "prompt", {"prompt": [1]}),
        ("/tokenize", "surprise", {"prompt": "a", "surprise": 1}),
        ("/tokenize", "add_special_tokens", {"prompt": "a", "add_special_tokens": 1}),
        ("/tokenize", "return_token_strs", {"prompt": "a", "return_token_strs": "yes"}),
        ("/tokenize", "prompt", {"prompt": "a", "messages": TALKS[0]["messages"]}),
        ("/tokenize", "messages", {"messages": []}),
        ("/tokenize", "messages", {"messages": [{"role": "user", "content": "refuse me"}]}),
        ("/tokenize", "chat_template_kwargs", {**TALKS[0], "chat_template_kwargs": {"enable_thoughts": True}}),
        ("/tokenize", "add_special_tokens", {**TALKS[0], "add_special_tokens": True}),
        ("/tokenize", "continue_final_message", {**TALKS[0], "continue_final_message": True}),
        ("/tokenize", "chat_template", {**TALKS[0], "chat_template": "{{ messages }}"}),
        ("/detokenize", "tokens", {}),
        ("/detokenize", "tokens", {"tokens": "a"}),
        ("/detokenize", "tokens[1]", {"tokens": [1, "a"]}),
        ("/detokenize", "tokens[0]", {"tokens": [True]}),
        ("/detokenize", "tokens", {"tokens": [1, -1]}),
        ("/detokenize", "tokens", {"tokens": [264]}),
        ("/detokenize", "tokens", {"tokens": [10**30]}),
        ("/detokenize", "surprise", {"tokens": [], "surprise": 1}),
    ],
)
def test_what_is_wrong_is_named(http: httpx.Client, path: str, param: str, fields: dict[str, Any]) -> None:
    error = ask(http, path, 400, **fields)
    assert error["param"] == param
    assert param in error["message"] or param == "messages"


def test_a_text_and_a_conversation_at_once(http: httpx.Client) -> None:
    assert "give one" in ask(http, "/tokenize", 400, prompt="a", **TALKS[0])["message"]


def test_ids_out_of_range_say_what_is_in_range(http: httpx.Client) -> None:
    assert ask(http, "/detokenize", tokens=[263])["prompt"] == "<|im_end|>"
    message = ask(http, "/detokenize", 400, tokens=[5, 264])["message"]
    assert message == "tokens[1] is 264; token ids of this model are 0 to 263"


@pytest.mark.parametrize(("path", "fields"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})])
def test_another_model(http: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    assert ask(http, path, 404, model="gpt-9", **fields)["code"] == "model_not_found"
    assert ask(http, "/tokenize", 404, model="gpt-9", **TALKS[0])["code"] == "model_not_found"

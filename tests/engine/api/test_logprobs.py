"""Log-probabilities are the model's, in both of OpenAI's shapes, and offsets point into the text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

from engine.api.logprobs import LOWEST, CompletionLogprobs, chat_logprobs, token_name
from engine.api.served import ServedModel
from reference.serving.request import TokenLogprobs
from tests.engine.api.conftest import Post
from tests.engine.fakes import ObedientModel


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())


def test_completions_shape_is_what_the_model_says(post: Post, served: ServedModel) -> None:
    ids = served.tokenizer.encode("babble")
    choice = post("completions", prompt="babble", max_tokens=4, logprobs=3, seed=1, ignore_eos=True)["choices"][0]
    logprobs = choice["logprobs"]
    model = ObedientModel(served.tokenizer)
    sampled = [next(i for i in range(300) if token_name(served.tokenizer, i) == t) for t in logprobs["tokens"]]
    for at, token_id in enumerate(sampled):
        expected = log_softmax(model.last_logits([*ids, *sampled[:at]]))
        assert logprobs["token_logprobs"][at] == pytest.approx(expected[token_id], abs=1e-4)
        top = {token_name(served.tokenizer, int(i)): expected[i] for i in np.argsort(-expected)[:3]}
        assert logprobs["top_logprobs"][at] == pytest.approx(
            top | {logprobs["tokens"][at]: expected[token_id]}, abs=1e-4
        )


def test_zero_logprobs_is_the_token_itself(post: Post) -> None:
    logprobs = post("completions", prompt="say:Hey#", logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["H", "e", "y", "<|im_end|>"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [["H"], ["e"], ["y"], ["<|im_end|>"]]
    assert all(-0.01 < value <= 0 for value in logprobs["token_logprobs"])


def test_offsets_point_into_the_text(post: Post) -> None:
    choice = post("completions", prompt="say:the 😀é!#", logprobs=0)["choices"][0]
    logprobs = choice["logprobs"]
    emoji, accent = (["bytes:\\x" + byte for byte in bytes_.split()] for bytes_ in ("f0 9f 98 80", "c3 a9"))
    assert logprobs["tokens"] == ["th", "e", " ", *emoji, *accent, "!", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 2, 3, 4, 4, 4, 4, 5, 5, 6, 7]
    assert len(choice["text"]) == 7


def test_echo_gives_the_prompts_too(post: Post, served: ServedModel) -> None:
    """As lm-eval asks: tokens of the prompt are judged, one token is generated and dropped."""
    prompt = "é the say:X#"
    ids = served.tokenizer.encode(prompt)
    choice = post("completions", prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0)["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == f"{prompt}X"
    assert len(logprobs["tokens"]) == len(ids) + 1
    assert {len(values) for values in logprobs.values()} == {len(ids) + 1}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    model = ObedientModel(served.tokenizer)
    for at in range(1, len(ids)):
        expected = log_softmax(model.last_logits(ids[:at]))
        assert logprobs["token_logprobs"][at] == pytest.approx(expected[ids[at]], abs=1e-4)
        is_greedy = expected.argmax() == ids[at]
        assert (logprobs["token_logprobs"][at] == max(logprobs["top_logprobs"][at].values())) == is_greedy
    assert logprobs["text_offset"] == [0, 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12]


def test_echo_of_each_of_several(post: Post) -> None:
    answer = post("completions", prompt=["say:A#", "say:BC#"], echo=True, logprobs=0, n=2)
    lengths = [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]]
    assert lengths == [6 + 2] * 2 + [7 + 3] * 2
    assert [choice["logprobs"]["token_logprobs"][0] for choice in answer["choices"]] == [None] * 4


def test_chats_shape(openai: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "say:H😀#"}]
    answer = openai.chat.completions.create(model="obedient", messages=messages, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    content = choice.logprobs.content
    assert [entry.token for entry in content][:2] == ["H", "bytes:\\xf0"]
    raw = bytes(byte for entry in content[:-1] for byte in entry.bytes or [])
    assert raw.decode() == choice.message.content == "H😀"
    assert content[-1].token == "<|im_end|>"
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob


def test_chats_shape_without_alternatives(post: Post) -> None:
    messages = [{"role": "user", "content": "say:Hi#"}]
    with_them = post("chat/completions", messages=messages, logprobs=True)["choices"][0]["logprobs"]
    assert [entry["top_logprobs"] for entry in with_them["content"]] == [[], [], []]
    assert post("chat/completions", messages=messages, logprobs=False)["choices"][0]["logprobs"] is None


def test_infinity_and_padding_have_a_form_in_json(served: ServedModel) -> None:
    beyond = served.tokenizer.num_token_ids + 2
    entry = TokenLogprobs(1, -math.inf, 9, ((beyond, -0.5), (1, -math.inf)))
    [told] = chat_logprobs(served.tokenizer, [entry])["content"]
    assert told["logprob"] == LOWEST
    assert [top["logprob"] for top in told["top_logprobs"]] == [-0.5, LOWEST]
    assert (told["top_logprobs"][0]["token"], told["top_logprobs"][0]["bytes"]) == ("", [])
    lists = CompletionLogprobs(served.tokenizer, True).sampled([entry])
    assert lists["token_logprobs"] == [LOWEST]


def test_prompt_logprobs_are_the_models(post: Post, served: ServedModel) -> None:
    prompt = "é the say:X#"
    ids = served.tokenizer.encode(prompt)
    asked: dict[str, Any] = {"prompt": prompt, "prompt_logprobs": 2, "max_tokens": 1, "n": 2}
    choices = post("completions", **asked)["choices"]
    told = choices[0]["prompt_logprobs"]
    assert told == choices[1]["prompt_logprobs"]
    assert choices[0]["logprobs"] is None
    assert len(told) == len(ids)
    assert told[0] is None
    model = ObedientModel(served.tokenizer)
    for at in range(1, len(ids)):
        expected = log_softmax(model.last_logits(ids[:at]))
        falling = [int(token_id) for token_id in np.argsort(-expected, kind="stable")]
        assert set(told[at]) == {str(token_id) for token_id in (ids[at], *falling[:2])}
        for token_id, entry in told[at].items():
            assert entry["logprob"] == pytest.approx(expected[int(token_id)], abs=1e-4)
            assert entry["rank"] == falling.index(int(token_id)) + 1
            assert entry["decoded_token"] == token_name(served.tokenizer, int(token_id))


def test_prompt_logprobs_and_an_echo_each_have_their_own_number(post: Post) -> None:
    asked: dict[str, Any] = {"prompt": "a say:X#", "echo": True, "max_tokens": 1, "temperature": 0}
    alone = post("completions", **asked, logprobs=1)["choices"][0]
    assert "prompt_logprobs" not in alone
    for number in (0, 3):
        both = post("completions", **asked, logprobs=1, prompt_logprobs=number)["choices"][0]
        assert both["logprobs"] == alone["logprobs"]
        assert {len(entry) - number for entry in both["prompt_logprobs"][1:]} <= {0, 1}
    without = post("completions", **asked, prompt_logprobs=0)["choices"][0]
    assert without["logprobs"] is None
    assert without["text"] == alone["text"]


def test_chat_has_prompt_logprobs_beside_its_choices(post: Post) -> None:
    messages = [{"role": "user", "content": "say:Hi#"}]
    answer = post("chat/completions", messages=messages, prompt_logprobs=1, n=2)
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in answer["choices"][0]
    assert "prompt_logprobs" not in post("chat/completions", messages=messages)

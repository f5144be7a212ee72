"""/v1/completions gives what the model says, whole and in pieces, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI

from engine.api.served import ServedModel
from tests.engine.api.conftest import Events, Post

PATH = "completions"


def text(answer: dict[str, Any], index: int = 0) -> str:
    return str(answer["choices"][index]["text"])


def test_a_completion(openai: OpenAI) -> None:
    answer = openai.completions.create(model="obedient", prompt="say:Hello!#", max_tokens=50)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "obedient"
    assert answer.created > 1.7e9
    [choice] = answer.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, "Hello!", "stop", None)
    assert answer.usage is not None
    # "Hello!" is 5 tokens, for "he" is not "He" but "ll" is two; and the ending token counts.
    assert answer.usage.completion_tokens == 6 + 1
    assert answer.usage.prompt_tokens == 11
    assert answer.usage.total_tokens == 18


def test_max_tokens_is_16_if_absent(post: Post) -> None:
    answer = post(PATH, prompt="babble", ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream(openai: OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = openai.completions.create(
        model="obedient", prompt="say:Hello!#", max_tokens=50, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Hello!"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "stop"]
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 7


def test_usage_in_a_stream_comes_as_asked(events: Events) -> None:
    plain = events(PATH, prompt="say:Hey#")
    assert all("usage" not in event for event in plain)
    counted = events(PATH, prompt="say:Hey#", stream_options={"continuous_usage_stats": True})
    assert [event["usage"]["completion_tokens"] for event in counted] == [1, 2, 3, 4]


def test_an_emoji_streams_as_one_piece(events: Events) -> None:
    pieces = [text(event) for event in events(PATH, prompt="say:a😀é\ufffd語b#", max_tokens=50)]
    assert "".join(pieces) == "a😀é\ufffd語b"
    assert {"😀", "é", "語"} <= set("".join(piece) for piece in pieces)


def test_a_cut_emoji_is_shown_as_one_replacement(post: Post) -> None:
    assert text(post(PATH, prompt="say:a😀#", max_tokens=3)) == "a\ufffd"


STOPS: list[tuple[dict[str, Any], str, str]] = [
    ({"stop": "DEF"}, "ABC", "DEF"),
    ({"stop": ["XYZ", "DEFG"]}, "ABC", "DEFG"),
    ({"stop": "DEF", "include_stop_str_in_output": True}, "ABCDEF", "DEF"),
]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("case", STOPS, ids=str)
def test_stop_strings(post: Post, events: Events, streams: bool, case: tuple[dict[str, Any], str, str]) -> None:
    fields, expected, reason = case
    asked = {"prompt": "say:ABCDEFGH#", "max_tokens": 50, **fields}
    parts = events(PATH, **asked) if streams else [post(PATH, **asked)]
    assert "".join(map(text, parts)) == expected
    last = parts[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", reason)


def test_what_only_begins_like_a_stop_string_is_shown(post: Post) -> None:
    choice = post(PATH, prompt="say:ABCDEFGH#", stop="HX")["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ABCDEFGH", "stop", None)


def test_stop_ids(post: Post, served: ServedModel) -> None:
    [letter] = served.tokenizer.encode("D")
    choice = post(PATH, prompt="say:ABCDEFGH#", stop_token_ids=[letter])["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ABC", "stop", letter)


def test_prompts_in_all_four_forms(post: Post, served: ServedModel) -> None:
    a, b = "say:One#", "say:Two#"
    ids = served.tokenizer.encode
    for prompt, expected in (
        (a, ["One"]),
        ([a, b], ["One", "Two"]),
        (ids(a), ["One"]),
        ([ids(a), ids(b)], ["One", "Two"]),
    ):
        answer = post(PATH, prompt=prompt)
        assert [choice["text"] for choice in answer["choices"]] == expected
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert answer["usage"] == {"prompt_tokens": 16, "completion_tokens": 8, "total_tokens": 24}


def test_samples_of_prompts_are_counted_prompt_by_prompt(post: Post, events: Events) -> None:
    asked = {"prompt": ["say:One#", "babble"], "n": 2, "seed": 5, "max_tokens": 8, "temperature": 2.0}
    answer = post(PATH, **asked)
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[:2] == ["One", "One"]
    assert texts[2] != texts[3]
    assert answer["usage"]["prompt_tokens"] == 8 + 6
    streamed = ["", "", "", ""]
    for event in events(PATH, **asked):
        [choice] = event["choices"]
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_seeds(post: Post) -> None:
    def babble(seed: int | None, **others: Any) -> list[str]:
        answer = post(PATH, prompt="babble", seed=seed, max_tokens=12, ignore_eos=True, **others)
        return [choice["text"] for choice in answer["choices"]]

    assert babble(7) == babble(7)
    assert babble(7) != babble(8)
    assert babble(None) != babble(None)
    assert babble(-1) == babble(2**64 - 1)
    assert babble(7, n=3)[0] == babble(7)[0]
    assert len(set(babble(7, n=3))) == 3


def test_greedy_is_the_likeliest(post: Post) -> None:
    texts = {text(post(PATH, prompt="babble", temperature=0, max_tokens=8)) for _ in range(3)}
    assert len(texts) == 1
    assert texts == {text(post(PATH, prompt="babble", temperature=1.5, top_k=1, max_tokens=8))}


def test_sampling_parameters_reach_the_core(post: Post, served: ServedModel) -> None:
    [letter] = served.tokenizer.encode("Q")
    always = post(PATH, prompt="babble", logit_bias={str(letter): 100}, max_tokens=4)
    assert text(always) == "QQQQ"
    fewer = post(
        PATH, prompt="babble", logit_bias={str(letter): 3}, repetition_penalty=50.0, temperature=0, max_tokens=9
    )
    assert text(fewer).count("Q") < 9
    assert len(text(post(PATH, prompt="say:Hi#", min_tokens=6, skip_special_tokens=False))) > 2


def test_special_tokens_are_shown_on_demand(post: Post) -> None:
    shown = {"include_stop_str_in_output": True, "skip_special_tokens": False}
    assert text(post(PATH, prompt="say:Hi#", **shown)) == "Hi<|im_end|>"
    assert text(post(PATH, prompt="say:Hi#", skip_special_tokens=False)) == "Hi"


@pytest.mark.parametrize("streams", [False, True])
def test_echo(post: Post, events: Events, served: ServedModel, streams: bool) -> None:
    asked: dict[str, Any] = {"prompt": ["say:Hi#", served.tokenizer.encode("<|im_start|>say:é#")], "echo": True, "n": 2}
    texts = ["", "", "", ""]
    for part in events(PATH, **asked) if streams else [post(PATH, **asked)]:
        for choice in part["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["say:Hi#Hi"] * 2 + ["<|im_start|>say:é#é"] * 2


def test_the_context_ends_an_answer(post: Post) -> None:
    answer = post(PATH, prompt="b" * 395, max_tokens=1000, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 400


ASKED = st.fixed_dictionaries(
    {
        "prompt": st.one_of(
            st.text("ab😀é語\ufffd XYZ\n", max_size=12).map("say:{}#".format), st.text("abc😀", min_size=1, max_size=9)
        ),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "max_tokens": st.integers(1, 16),
        "n": st.integers(1, 3),
    },
    optional={
        "stop": st.lists(st.text("abX😀é", min_size=1, max_size=3), max_size=4),
        "temperature": st.floats(0, 2),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ASKED)
def test_streamed_pieces_joined_are_the_whole(post: Post, events: Events, asked: dict[str, Any]) -> None:
    whole = post(PATH, **asked)
    choices: list[dict[str, Any]] = [{"text": "", "logprobs": None} for _ in range(asked["n"])]
    parts = events(PATH, **asked, stream_options={"include_usage": True})
    for event in parts[:-1]:
        [part] = event["choices"]
        choice = choices[part["index"]]
        assert choice.get("finish_reason") is None, "something came after the end"
        choice["text"] += part["text"]
        if part["logprobs"] is not None:
            before = choice["logprobs"] or {name: [] for name in part["logprobs"]}
            choice["logprobs"] = {name: before[name] + part["logprobs"][name] for name in before}
        choice.update({name: part[name] for name in ("index", "finish_reason", "stop_reason")})
    assert choices == whole["choices"]
    assert parts[-1]["usage"] == whole["usage"]


def test_only_allowed_tokens_come(post: Post, served: ServedModel) -> None:
    allowed = served.tokenizer.encode("xyz")
    said = text(post(PATH, prompt="babble", allowed_token_ids=allowed, max_tokens=12))
    assert len(said) == 12
    assert set(said) <= set("xyz")


def test_priority_reaches_the_core(post: Post, served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, core = [], served.engine.core
    add = core.add
    monkeypatch.setattr(core, "add", lambda request: (seen.append(request.priority), add(request)))
    for priority in (-100, 100, None):
        post(PATH, prompt=["say:Hi#", "say:Ho#"], priority=priority)
    assert seen == [-100, -100, 100, 100, 0, 0]

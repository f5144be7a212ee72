"""Messages of every legal form become the plain one; every other is refused by its place."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import plain_messages


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def called(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "one"}], "one"),
        ([{"type": "text", "text": "one, "}, {"type": "text", "text": "two"}], "one, two"),
    ],
)
def test_content_becomes_a_string(content: Any, text: str) -> None:
    assert plain_messages([user(content)]) == [user(text)]


def test_absent_content_is_empty_and_null_fields_are_left_out() -> None:
    assert plain_messages([{"role": "assistant", "tool_calls": None}]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_roles_stay_and_developer_is_system(role: str) -> None:
    assert plain_messages([{"role": role, "content": "x", "name": "n"}]) == [
        {"role": role, "content": "x", "name": "n"}
    ]
    assert plain_messages([{"role": "developer", "content": "x"}]) == [{"role": "system", "content": "x"}]


@settings(deadline=None)
@given(
    arguments=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))
)
def test_arguments_in_a_string_are_parsed(arguments: dict[str, Any]) -> None:
    message = called(json.dumps(arguments))
    before = copy.deepcopy(message)
    (plain,) = plain_messages([message])
    assert plain == called(arguments) | {"content": ""}
    assert message == before  # what came in is left as it is


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "3", '"x"', "[" * 100_000, {"a": 1}])
def test_arguments_that_are_no_object_in_a_string_stay(arguments: Any) -> None:
    assert plain_messages([called(arguments)]) == [called(arguments) | {"content": ""}]


def test_reasoning_has_one_name() -> None:
    message = {"role": "assistant", "content": "x", "reasoning": "because"}
    assert plain_messages([message])[0]["reasoning_content"] == "because"
    assert plain_messages([message | {"reasoning_content": "so"}])[0]["reasoning_content"] == "so"


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": id_, "function": {"name": "f"}} for id_ in ids]}


def answering(*ids: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": id_, "content": f"of {id_}"} for id_ in ids]


@settings(deadline=None)
@given(turns=st.lists(st.lists(st.sampled_from("abcd"), unique=True), max_size=3), random=st.randoms())
def test_answers_of_tools_stand_in_the_order_of_the_calls(turns: list[list[str]], random: Any) -> None:
    sent, expected = [user("x")], [user("x")]
    for ids in turns:
        some = [id_ for id_ in ids if random.random() < 0.8]
        sent += [calling(*ids), *answering(*random.sample(some, len(some))), user("y")]
        expected += [calling(*ids), *answering(*some), user("y")]
    assert plain_messages(sent) == plain_messages(expected)
    assert [message for message in plain_messages(sent) if message["role"] == "tool"] == [
        message for message in expected if message["role"] == "tool"
    ]


def test_answers_without_ids_stay_where_they_are() -> None:
    answers = [{"role": "tool", "content": text} for text in "ba"]
    assert plain_messages([calling("a", "b"), *answers])[1:] == answers


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        (answering("a"), 0),
        ([calling("a"), *answering("a", "b")], 2),
        ([calling("a"), user("x"), *answering("a")], 2),
        ([calling("a"), calling("b"), *answering("a")], 2),
    ],
)
def test_an_answer_to_no_call_is_refused(messages: list[Any], place: int) -> None:
    with pytest.raises(ValueError, match=rf"^messages\[{place}\]\.tool_call_id is '[ab]'; .* makes no such call"):
        plain_messages(messages)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ([user("x"), "hello"], r"messages\[1\] is a str; expected an object"),
        ([{"content": "x"}], r"messages\[0\]\.role is None; known are system, developer, user, assistant, tool"),
        ([{"role": "narrator", "content": "x"}], r"messages\[0\]\.role is 'narrator'"),
        ([{"role": ["user"]}], r"messages\[0\]\.role is \['user'\]"),
        ([user(3)], r"messages\[0\]\.content is a int; expected a string or a list of text parts"),
        ([user({"text": "x"})], r"messages\[0\]\.content is a dict"),
        ([user([{"type": "text", "text": "x"}, {"type": "image_url"}])], r"content\[1\] is of type 'image_url'"),
        ([user([{"type": "text", "text": None}])], r"content\[0\] is of type 'text'"),
        ([user(["x"])], r"content\[0\] is of type 'str'"),
        ([{"role": "assistant", "tool_calls": ["x"]}], r"messages\[0\]\.tool_calls\[0\] is a str"),
        ([{"role": "assistant", "tool_calls": 3}], r"messages\[0\]\.tool_calls is a int; expected a list"),
    ],
)
def test_another_form_is_refused_by_its_place(messages: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_messages(messages)

"""`response_format` and its relatives: what they ask for is what the answer is, and what cannot be is a 400."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import httpx
import jsonschema_rs
import pytest
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.engine.api.conftest import Events, Post
from tests.engine.api.test_errors import CHAT, COMPLETIONS, ENDPOINTS, refused

# Short to say for a model that babbles.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"level": {"enum": ["low", "high"]}, "sure": {"type": "boolean"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["level", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "maxItems": 2}},
}
SMALL: dict[str, Any] = {"type": "array", "items": {"enum": [1, "a"]}, "minItems": 2, "maxItems": 2}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": SCHEMA, "strict": True}}
LANGUAGES: list[tuple[dict[str, Any], str | dict[str, Any]]] = [  # parameters -> a regular expression or a schema
    ({"response_format": RESPONSE_FORMAT}, SCHEMA),
    ({"structured_outputs": {"json": SMALL}}, SMALL),
    ({"structured_outputs": {"json": json.dumps(SMALL)}}, SMALL),
    ({"structured_outputs": {"choice": ["yes", 'no "never"']}}, 'yes|no "never"'),
    ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]"}}, "[a-c]{3}-[0-9]"),
    ({"structured_outputs": {"grammar": 'start: "<" ("a" | "b") ">"'}}, "<[ab]>"),
    ({"guided_json": SMALL}, SMALL),
    ({"guided_choice": ["one", "two"]}, "one|two"),
    ({"guided_regex": r"\d\d:\d\d"}, r"\d\d:\d\d"),
    ({"guided_grammar": 'root ::= "x" [yz] "w"'}, "x[yz]w"),
]


def text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]


def check(text: str, language: str | dict[str, Any]) -> None:
    if isinstance(language, str):
        assert re.fullmatch(language, text)
    else:
        jsonschema_rs.Draft202012Validator(language).validate(json.loads(text))


@pytest.mark.parametrize(("params", "language"), LANGUAGES)
def test_the_answer_is_in_the_language(post: Post, params: dict[str, Any], language: str | dict[str, Any]) -> None:
    """Whatever the model would say: here it babbles."""
    answer = post("completions", prompt="x", **params, n=2, seed=1, max_tokens=300)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        check(text_of(choice), language)


@pytest.mark.parametrize(("params", "language"), LANGUAGES[:1] + LANGUAGES[3:4])
def test_in_a_chat_too(post: Post, params: dict[str, Any], language: str | dict[str, Any]) -> None:
    """It is told to say Hi."""
    check(text_of(post("chat/completions", **CHAT, **params, max_tokens=300)["choices"][0]), language)


def test_in_streams_too(events: Events) -> None:
    fields = {"response_format": RESPONSE_FORMAT, "max_tokens": 300, "seed": 3}
    of_completion = events("completions", prompt="x", **fields)
    check("".join(choice["text"] for event in of_completion for choice in event["choices"]), SCHEMA)
    deltas = [choice["delta"] for event in events("chat/completions", **CHAT, **fields) for choice in event["choices"]]
    check("".join(delta.get("content") or "" for delta in deltas), SCHEMA)
    assert len(deltas) > 10


def test_text_asks_for_nothing(post: Post) -> None:
    assert text_of(post("completions", **COMPLETIONS, response_format={"type": "text"})["choices"][0]) == "Hi"


def test_any_object(post: Post) -> None:
    prompt = 'say:{"a": [1, {}]}#'
    answer = post("completions", prompt=prompt, response_format={"type": "json_object"}, temperature=0, max_tokens=50)
    assert text_of(answer["choices"][0]) == '{"a": [1, {}]}'
    held = post("completions", prompt="say:[1, 2]#", response_format={"type": "json_object"}, max_tokens=2)
    assert text_of(held["choices"][0]).startswith("{")


def test_the_budget_still_ends_it(post: Post) -> None:
    (choice,) = post("completions", prompt="x", response_format=RESPONSE_FORMAT, max_tokens=3)["choices"]
    assert choice["finish_reason"] == "length"


class Forecast(BaseModel):
    """What a client of the openai package would declare."""

    model_config = ConfigDict(extra="forbid")

    place: str = Field(max_length=4)
    level: Literal["low", "high"]
    days: list[int] = Field(max_length=2)
    wind: float | None = Field(ge=0, le=9)


def test_the_openai_package_parses_a_pydantic_model(openai: OpenAI) -> None:
    answer = openai.chat.completions.parse(
        model="obedient",
        messages=[
            {"role": "user", "content": 'say:{"place": "Oslo", "level": "low", "days": [1, 2], "wind": 0.5}#'},
        ],
        response_format=Forecast,
        temperature=0,
    )
    assert answer.choices[0].message.parsed == Forecast(place="Oslo", level="low", days=[1, 2], wind=0.5)


def test_the_openai_package_streams_one(openai: OpenAI) -> None:
    said = 'say:{"place": "Oslo", "level": "high", "days": [], "wind": null}#'
    with openai.chat.completions.stream(
        model="obedient", messages=[{"role": "user", "content": said}], response_format=Forecast, temperature=0
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Forecast(place="Oslo", level="high", days=[], wind=None)


WRONG = [
    ("response_format", "json"),
    ("response_format.type", {}),
    ("response_format.type", {"type": "xml"}),
    ("response_format.json_schema", {"type": "json_schema"}),
    ("response_format.json_schema", {"type": "json_object", "json_schema": {"schema": {}}}),
    ("response_format.json_schema.schema", {"type": "json_schema", "json_schema": {"name": "a"}}),
    ("response_format.json_schema.schema", {"type": "json_schema", "json_schema": {"schema": 5}}),
    ("response_format.json_schema.strict", {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}),
    ("response_format.json_schema.surprise", {"type": "json_schema", "json_schema": {"schema": {}, "surprise": 1}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}),
    ("structured_outputs", {}),
    ("structured_outputs", {"json_object": False}),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}),
    ("structured_outputs", {"json": "{"}),
    ("structured_outputs", {"json": "5"}),
    ("structured_outputs", {"regex": "("}),
    ("structured_outputs", {"choice": []}),
    ("structured_outputs.choice[1]", {"choice": ["a", 1]}),
    ("structured_outputs", {"grammar": "start: nothing"}),
    ("structured_outputs.structural_tag", {"structural_tag": "{}"}),
    ("structured_outputs.surprise", {"regex": "a", "surprise": 1}),
    ("guided_regex", 5),
    ("guided_regex", "(?=a)"),
    ("guided_choice", "yes"),
    ("guided_json", {"$ref": "https://example.com"}),
    ("guided_grammar", 'root ::= "a'),
]


@pytest.mark.parametrize(("param", "value"), WRONG)
@pytest.mark.parametrize("path", ENDPOINTS)
def test_what_is_wrong_is_named(http: httpx.Client, path: str, param: str, value: Any) -> None:
    field = re.split(r"[.\[]", param)[0]
    error = refused(http, path, ENDPOINTS[path] | {field: value})
    assert error["param"] == param and param in error["message"]


@pytest.mark.parametrize(
    ("params", "param", "says"),
    [
        ({"response_format": RESPONSE_FORMAT, "guided_choice": ["a"]}, "guided_choice", "response_format"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex", "structured_outputs"),
        ({"guided_json": {}, "ignore_eos": True}, "ignore_eos", "ends where"),
        ({"guided_json": {}, "min_tokens": 3}, "min_tokens", "ends where"),
        ({"guided_choice": ["yes"], "allowed_token_ids": [1]}, "allowed_token_ids", "cannot be given"),
        ({"guided_json": {"items": {"not": {}}}}, "guided_json", 'Unimplemented keys: ["not"]'),
    ],
)
def test_what_does_not_go_together(http: httpx.Client, params: dict[str, Any], param: str, says: str) -> None:
    error = refused(http, "completions", COMPLETIONS | params)
    assert error["param"] == param and says in error["message"]

"""A real model, if a small one, behind the API: what it says under a schema is of the schema, and a client can tell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Literal

import pytest
from openai import OpenAI
from pydantic import BaseModel, Field
from rich.console import Console

from engine.api.app import create_app
from engine.commands.load import add_model_options, load_model
from tests.engine.serving import serving


class Person(BaseModel):
    name: str = Field(pattern="^[A-Z][a-z]{1,8}$")
    age: int = Field(ge=0, le=120)
    mood: Literal["happy", "sad"]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    """Of the built-in dense model, served as the specification says."""
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    options = parser.parse_args(["dense", "--panel", "specification"])
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

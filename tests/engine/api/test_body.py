"""Bodies that are too large, too slow, or made to keep the server busy."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Message

import engine.api.tokenize  # noqa: F401 (so that its request models are known)
from engine.api.app import create_app
from engine.api.body import MAX_BODY_BYTES, parse, read_body
from engine.api.errors import MAX_TOLD, ApiError
from engine.api.protocol import CompletionRequest
from engine.api.strict import Strict
from tests.engine.fakes import served_model
from tests.engine.serving import serving


def request(*messages: Message, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Request:
    """One whose body comes in these messages, and then no more."""
    coming = iter(messages)

    async def receive() -> Message:
        for message in coming:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    return Request({"type": "http", "headers": headers}, receive)


def part(body: bytes, more_body: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more_body}


def test_a_body_in_parts() -> None:
    assert asyncio.run(read_body(request(part(b"a", True), part(b"", True), part(b"bc", False)))) == b"abc"
    assert asyncio.run(read_body(request(part(b"abc", False)), limit=3)) == b"abc"


def test_a_body_over_the_limit_is_not_read() -> None:
    announced = request(headers=((b"content-length", b"4"),))
    grown = request(part(b"ab", True), part(b"cd", True))
    for asked in (announced, grown):
        with pytest.raises(ApiError, match="larger than 3 bytes") as refused:
            asyncio.run(read_body(asked, limit=3))
        assert refused.value.status == 413


def test_a_body_that_does_not_come() -> None:
    for asked in (request(), request(part(b"{", True))):
        with pytest.raises(ApiError, match=r"within 0\.01 seconds") as refused:
            asyncio.run(read_body(asked, seconds=0.01))
        assert refused.value.status == 408


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_connection_that_sends_no_more_is_closed(text_side: Path, path: str) -> None:
    with serving(create_app(served_model(text_side), body_seconds=0.05)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
            told = b"".join(iter(lambda: connection.recv(1000), b""))  # until it is closed
    head, body = told.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert "0.05 seconds" in json.loads(body)["error"]["message"]


def test_the_default_holds_the_longest_prompts() -> None:
    ids = json.dumps({"prompt": [151_642] * 2**18, "logit_bias": {}}).encode()
    bias = json.dumps({"prompt": "a", "logit_bias": {str(token_id): -100.0 for token_id in range(151_936)}}).encode()
    assert max(len(ids), len(bias)) < MAX_BODY_BYTES
    assert len(parse(CompletionRequest, bias).logit_bias) == 151_936


def models(base: type[Strict] = Strict) -> Iterator[type[Strict]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def containers(model: type[Strict]) -> Iterator[dict[str, Any]]:
    """Fields with a thousand entries of which none is right."""
    for field in model.model_fields:
        for wrong in (None, {}, [], {"type": "no such"}, object()):
            yield {field: [wrong] * 1000}
            yield {field: {str(number): wrong for number in range(1000)}}
    yield {f"unknown {number}": 1 for number in range(1000)}


@pytest.mark.parametrize("model", sorted(set(models()), key=lambda model: model.__name__))
def test_what_is_wrong_a_thousand_times_is_found_once(model: type[Strict]) -> None:
    """Or else a large body of errors holds up the whole server for a minute."""
    for fields in containers(model):
        try:
            model.model_validate(fields)
        except ValidationError as error:
            assert error.error_count() < 20, fields.keys()


def test_a_thousand_errors_would_be_found_without_the_base() -> None:
    """The negative control of the test above."""

    class Careless(Strict):
        entries: dict[str, int] = {}  # noqa: RUF012

    with pytest.raises(ValidationError) as found:
        Careless.model_validate({"entries": dict.fromkeys(map(str, range(1000)))})
    assert found.value.error_count() == 1000
    del Careless


@pytest.mark.parametrize(
    "fields",
    [
        {"x" * 10**6: 1},
        {"prompt": "a", "logit_bias": {"x" * 10**6: 1}},
        {"prompt": "a", "metadata": {"x" * 10**6: 1}},
        {"prompt": "a", "stream_options": {"x" * 10**6: 1}},
    ],
    ids=["name", "id", "key", "nested name"],
)
def test_what_is_told_back_is_short(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, json.dumps(fields).encode())
    assert len(str(refused.value)) + len(refused.value.param or "") < 4 * MAX_TOLD

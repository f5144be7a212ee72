"""Every response names its request: as the client did, or by itself."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.errors import HANDLERS
from engine.api.request_id import RequestIds, current_request_id

ROUTES = [
    ("GET", "/health", 200),
    ("GET", "/nowhere", 404),
    ("DELETE", "/health", 405),
    ("POST", "/v1/completions", 400),
    ("POST", "/tokenize", 400),
]


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_every_response_has_one(http: httpx.Client, method: str, path: str, status: int) -> None:
    named = http.request(method, path, headers={"X-Request-Id": "mine-1"})
    assert (named.status_code, named.headers.get_list("x-request-id")) == (status, ["mine-1"])
    unnamed = {http.request(method, path).headers["x-request-id"] for _ in range(3)}
    assert len(unnamed) == 3


def test_a_stream_has_one(http: httpx.Client) -> None:
    headers = {"X-Request-Id": "mine-2"}
    with http.stream(
        "POST", "/v1/completions", json={"prompt": "say:Hi#", "stream": True}, headers=headers
    ) as response:
        assert response.headers["x-request-id"] == "mine-2"
        response.read()


@pytest.mark.parametrize("name", ["", "two words", "é", "a" * 129, b"a\tb"])
def test_a_name_that_logs_could_not_show_is_replaced(http: httpx.Client, name: str | bytes) -> None:
    raw = name if isinstance(name, bytes) else name.encode()
    told = http.get("/health", headers={b"x-request-id": raw}).headers["x-request-id"]
    assert len(told) == 32 and told.isalnum()


def test_a_response_to_an_unforeseen_error_has_one_and_the_log_too(caplog: pytest.LogCaptureFixture) -> None:
    async def crash(_: Request) -> Response:
        assert current_request_id() == "mine-3"
        raise ZeroDivisionError

    app = RequestIds(Starlette(routes=[Route("/", crash)], exception_handlers=HANDLERS))

    async def scenario() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/", headers={"X-Request-Id": "mine-3"})

    with caplog.at_level(logging.ERROR):
        response = asyncio.run(scenario())
    assert (response.status_code, response.headers["x-request-id"]) == (500, "mine-3")
    assert "under request mine-3" in caplog.text
    assert current_request_id() is None

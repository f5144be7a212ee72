"""One obedient model behind a real server for each module of tests, and two clients of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from engine.api.app import create_app
from engine.api.served import ServedModel
from tests.engine.fakes import served_model
from tests.engine.serving import serving
from tests.engine.text_side import write_text_side

Post = Callable[..., dict[str, Any]]
Events = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def text_side(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("obedient")
    write_text_side(directory)
    return directory


@pytest.fixture(scope="module")
def served(text_side: Path) -> ServedModel:
    return served_model(text_side)


@pytest.fixture(scope="module")
def http(served: ServedModel) -> Iterator[httpx.Client]:
    with serving(create_app(served)) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def openai(http: httpx.Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=str(http.base_url.join("/v1")), api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def post(http: httpx.Client) -> Post:
    """POST the fields to a path under /v1; the body of a 200."""

    def post(path: str, **fields: Any) -> dict[str, Any]:
        response = http.post(f"v1/{path}", json=fields)
        assert response.status_code == 200, response.text
        return response.json()

    return post


@pytest.fixture(scope="module")
def events(http: httpx.Client) -> Events:
    """POST the fields with stream on; the events, without [DONE], which must be the last."""

    def events(path: str, **fields: Any) -> list[dict[str, Any]]:
        with http.stream("POST", f"v1/{path}", json={**fields, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    return events

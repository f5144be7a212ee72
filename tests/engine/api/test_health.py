"""/health, and a token that is really generated when asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from engine.api.app import create_app
from engine.api.served import ServedModel
from engine.loop import AsyncEngine
from reference.serving.request import MAX_PRIORITY, Request, RequestOutput
from tests.engine.api.conftest import Post
from tests.engine.api.test_app import client_of
from tests.engine.fakes import RecordingCore, served_model


class WatchedCore(RecordingCore):
    """Keeps what it was asked for."""

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served.tokenizer, 400)
        self.added: list[Request] = []

    def add(self, request: Request) -> None:
        self.added.append(request)
        super().add(request)


@pytest.fixture
def watched(text_side: Path) -> tuple[ServedModel, WatchedCore]:
    served = served_model(text_side)
    core = WatchedCore(served)
    return replace(served, engine=AsyncEngine(core)), core


def test_a_token_is_generated_when_asked_for_and_only_then(watched: tuple[ServedModel, WatchedCore]) -> None:
    served, core = watched

    async def scenario() -> None:
        async with client_of(create_app(served)) as client:
            for path in ("/health", "/health?generate=0"):
                assert (await client.get(path)).json() == {"status": "ok"}
            assert not core.added
            response = await client.get("/health?generate=1")
            assert (response.status_code, response.json()["status"]) == (200, "ok")
            assert response.json()["seconds"] > 0

    asyncio.run(scenario())
    [asked] = core.added
    assert (asked.params.temperature, asked.params.max_tokens, asked.priority) == (0, 1, -MAX_PRIORITY)
    assert len(asked.prompt_token_ids) == 1
    assert not core.has_work()


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("deep=1", "deep"),
        ("generate=1&deep=1", "deep"),
        ("Generate=1", "Generate"),
        *((query, "generate") for query in ("generate=2", "generate", "generate=true", "generate=1&generate=1")),
    ],
)
def test_what_is_not_known_is_refused(http: httpx.Client, query: str, param: str) -> None:
    response = http.get(f"/health?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_however_many_probes_cost_one_request(watched: tuple[ServedModel, WatchedCore]) -> None:
    served, core = watched

    async def scenario() -> None:
        async with client_of(create_app(served)) as client:
            core.open.clear()
            probes = [asyncio.create_task(client.get("/health?generate=1")) for _ in range(20)]
            while not core.added:
                await asyncio.sleep(0.001)
            probes[0].cancel()  # who leaves takes nobody along
            core.open.set()
            assert {(await probe).status_code for probe in probes[1:]} == {200}

    asyncio.run(scenario())
    assert len(core.added) == 1


def test_an_engine_that_hangs_is_a_503_and_others_still_get_their_answers(text_side: Path) -> None:
    served = served_model(text_side)
    core = served.engine.core
    assert isinstance(core, RecordingCore)

    async def scenario() -> None:
        async with client_of(create_app(served, health_seconds=0.05)) as client:
            core.open.clear()
            answer = asyncio.create_task(client.post("/v1/completions", json={"prompt": "say:Hi#"}))
            while not core.has_work():
                await asyncio.sleep(0.001)
            response = await client.get("/health?generate=1")
            assert (response.status_code, response.json()["status"]) == (503, "failed")
            assert response.json()["reason"] == "no token within 0.05 seconds"
            core.open.set()
            assert (await answer).json()["choices"][0]["text"] == "Hi"
        assert not core.has_work(), "the probe was left behind"

    asyncio.run(scenario())


def test_an_engine_that_fails_is_a_503_that_says_why(text_side: Path) -> None:
    class Broken(RecordingCore):
        def step(self) -> list[RequestOutput]:
            raise ZeroDivisionError("no more")

    served = served_model(text_side)
    broken = replace(served, engine=AsyncEngine(Broken(served.tokenizer, 400)))

    async def scenario() -> None:
        async with client_of(create_app(broken)) as client:
            assert (await client.get("/health")).status_code == 200  # it takes requests, and fails them
            response = await client.get("/health?generate=1")
            assert response.status_code == 503
            assert "ZeroDivisionError: no more" in response.json()["reason"]

    asyncio.run(scenario())


def test_an_engine_that_was_stopped(text_side: Path) -> None:
    served = served_model(text_side)

    async def scenario() -> None:
        async with client_of(create_app(served)) as client:
            await asyncio.to_thread(served.engine.stop)
            assert (await client.get("/health")).json() == {"status": "stopping"}
            response = await client.get("/health?generate=1")
            assert (response.status_code, response.json()["status"]) == (503, "failed")

    asyncio.run(scenario())


def test_a_probe_beside_answers(http: httpx.Client, post: Post) -> None:
    assert http.get("/health?generate=1").status_code == 200
    assert post("completions", prompt="say:Hi#")["choices"][0]["text"] == "Hi"

"""The application around the two endpoints: other routes, limits, failures of the core, many clients, the end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import openai as openai_package
import pytest
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families as parse_text
from starlette.applications import Starlette

from engine.api import app as app_module
from engine.api.app import create_app
from engine.api.body import parse
from engine.checkpoint import GenerationDefaults
from engine.version import VERSION
from tests.engine.api.conftest import Post
from tests.engine.fakes import RecordingCore, served_model


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """A client in this event loop, of an application that is started and stopped."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield client


def test_health_and_version(http: httpx.Client) -> None:
    assert (http.get("/health").status_code, http.get("/health").json()) == (200, {"status": "ok"})
    assert http.get("/version").json() == {"version": VERSION}


def test_models(openai: OpenAI) -> None:
    [model] = openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("obedient", "model", "diptych")
    assert model.created > 1.7e9
    assert model.model_extra == {"max_model_len": 400}
    assert openai.models.retrieve("obedient") == model
    with pytest.raises(openai_package.NotFoundError, match="owner/other"):
        openai.models.retrieve("owner/other")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
    ],
)
def test_routes_that_are_not_there(http: httpx.Client, method: str, path: str, status: int) -> None:
    response = http.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert path in error["message"] or "model" in error["message"]
    if status == 405:
        assert response.headers["allow"] in error["message"]


def test_a_body_over_the_limit(text_side: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async def scenario() -> None:
        async with client_of(create_app(served_model(text_side), max_body_bytes=1000)) as client:
            for content in (b" " * 1001, parts()):
                response = await client.post("/v1/completions", content=content)
                assert response.status_code == 413
                assert "1000 bytes" in response.json()["error"]["message"]
            assert (await client.post("/v1/completions", json={"prompt": "say:Hi#"})).status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("prompt", ["crash!", "nan!"])
def test_a_failure_of_the_core_is_a_500_and_the_next_request_works(http: httpx.Client, post: Post, prompt: str) -> None:
    for stream in (False, True):
        response = http.post("/v1/completions", json={"prompt": prompt, "stream": stream})
        assert response.status_code == 500
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_failed")
        assert "NaN" in error["message"] or "ZeroDivisionError" in error["message"]
    assert post("completions", prompt="say:Hi#")["choices"][0]["text"] == "Hi"


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_failure_in_the_middle_of_a_stream_is_an_event(http: httpx.Client, path: str) -> None:
    prompt = "say:boom, and more#"
    asked = {"prompt": prompt} if path == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    with http.stream("POST", f"/v1/{path}", json={**asked, "stream": True}) as response:
        assert response.status_code == 200
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert "o" in lines[-2]
    error = json.loads(lines[-1])["error"]  # and no [DONE] after it
    assert error["code"] == "engine_failed"
    assert "boom" in error["message"]


def test_openais_client_raises_what_fails_in_the_middle(openai: OpenAI, post: Post) -> None:
    with pytest.raises(openai_package.APIError, match="boom"):
        list(openai.completions.create(model="obedient", prompt="say:boom, and more#", stream=True))
    assert post("completions", prompt="say:Hi#")["choices"][0]["text"] == "Hi"


def test_defaults_are_the_checkpoints(text_side: Path) -> None:
    async def babble(defaults: GenerationDefaults, **fields: Any) -> str:
        async with client_of(create_app(served_model(text_side, defaults=defaults))) as client:
            response = await client.post("/v1/completions", json={"prompt": "babble", "seed": 1, **fields})
            return str(response.json()["choices"][0]["text"])

    async def scenario() -> None:
        greedy = await babble(GenerationDefaults(), temperature=0)
        assert await babble(GenerationDefaults()) != greedy
        assert await babble(GenerationDefaults(temperature=0.0)) == greedy
        assert await babble(GenerationDefaults(top_k=1)) == greedy
        assert await babble(GenerationDefaults(top_p=1e-6)) == greedy
        sampled = await babble(GenerationDefaults())
        assert await babble(GenerationDefaults(top_k=1), top_k=-1) == sampled
        assert await babble(GenerationDefaults(temperature=0.0), temperature=1) == sampled
        penalized = await babble(GenerationDefaults(), repetition_penalty=0.01)
        assert await babble(GenerationDefaults(repetition_penalty=0.01)) == penalized != sampled

    asyncio.run(scenario())


def test_a_checkpoint_without_a_chat_template(text_side: Path) -> None:
    async def scenario() -> None:
        async with client_of(create_app(replace(served_model(text_side), template=None))) as client:
            response = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
            assert response.status_code == 400
            assert "chat template" in response.json()["error"]["message"]

    asyncio.run(scenario())


def test_a_body_that_takes_long_to_check_holds_up_nobody(text_side: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checking, go_on = threading.Event(), threading.Event()

    def slow_parse(model: Any, body: bytes) -> Any:
        checking.set()
        assert go_on.wait(timeout=20)
        return parse(model, body)

    monkeypatch.setattr(app_module, "parse", slow_parse)

    async def scenario() -> None:
        async with client_of(create_app(served_model(text_side))) as client:
            answer = asyncio.create_task(client.post("/v1/completions", json={"prompt": "say:Hi#"}))
            assert await asyncio.to_thread(checking.wait, 20)
            assert (await client.get("/health")).status_code == 200
            go_on.set()
            assert (await answer).json()["choices"][0]["text"] == "Hi"

    asyncio.run(scenario())


def test_twenty_clients_at_once(openai: OpenAI) -> None:
    async def scenario() -> list[str]:
        async with AsyncOpenAI(base_url=str(openai.base_url), api_key="none", max_retries=0, timeout=30) as client:

            async def one(number: int) -> str:
                prompt = f"say:I am {number}, and not {number + 1}.#"
                if number % 2:
                    answer = await client.completions.create(model="obedient", prompt=prompt, max_tokens=60)
                    return answer.choices[0].text
                stream = await client.completions.create(model="obedient", prompt=prompt, max_tokens=60, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*map(one, range(20)))

    assert asyncio.run(scenario()) == [f"I am {number}, and not {number + 1}." for number in range(20)]


def test_what_is_wrong_harms_nobody_else(text_side: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an answer others ask for what cannot be, and leave."""
    wrong: list[dict[str, Any]] = [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": "a", "max_tokens": 0},
        {"prompt": "a" * 400},
        {"prompt": [99999]},
        {"prompt": ["say:Hi#", "a" * 400]},
        {"prompt": "a", "temperature": -1},
    ]
    said = "a long answer"
    served = served_model(text_side)
    core, go_on, steps = served.engine.core, threading.Event(), count()
    step = core.step
    # After five tokens there are none until all of them have come.
    monkeypatch.setattr(core, "step", lambda: step() if go_on.is_set() or next(steps) < 5 else [])

    async def scenario() -> None:
        async with client_of(create_app(served)) as client:
            asked = {"prompt": f"say:{said}#", "max_tokens": 50}
            answer = asyncio.create_task(client.post("/v1/completions", json=asked))
            for fields in wrong:
                response = await client.post("/v1/completions", json=fields)
                assert response.status_code == 400
                assert response.json()["error"]["param"] == ("prompt" if len(fields) == 1 else [*fields][1])
                leaving = asyncio.create_task(client.post("/v1/completions", json=asked))
                await asyncio.sleep(0)
                leaving.cancel()
            assert not answer.done()
            go_on.set()
            choice = (await answer).json()["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (said, "stop")
        assert not served.engine._streams
        assert not core.has_work()

    asyncio.run(scenario())


def test_metrics_in_both_formats(http: httpx.Client, post: Post) -> None:
    def generated() -> float:
        families = parse_text(http.get("/metrics").text)
        [family] = [family for family in families if family.name == "diptych_generated_tokens"]
        [total] = [sample for sample in family.samples if sample.name.endswith("_total")]
        assert total.labels == {"model": "obedient"}
        return total.value

    before = generated()
    post("completions", prompt="say:Hi#", n=2)
    assert generated() == before + 6
    assert http.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    open_metrics = http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert open_metrics.text.endswith("# EOF\n")


def test_stopping_lets_answers_finish_and_says_so_to_health(text_side: Path) -> None:
    async def scenario() -> None:
        served = served_model(text_side)
        core = served.engine.core
        assert isinstance(core, RecordingCore)
        app = create_app(served, drain_seconds=5)
        async with client_of(app) as client:
            core.open.clear()
            asked = asyncio.create_task(client.post("/v1/completions", json={"prompt": "say:Hi#"}))
            while not core.has_work():
                await asyncio.sleep(0.002)
            stopping = asyncio.create_task(asyncio.to_thread(served.engine.stop, 5))
            while served.engine.alive:
                await asyncio.sleep(0.002)
            assert (await client.get("/health")).status_code == 503
            late = await client.post("/v1/completions", json={"prompt": "say:Hi#"})
            assert late.status_code == 503
            assert late.json()["error"]["type"] == "server_error"
            core.open.set()
            assert json.loads((await asked).content)["choices"][0]["text"] == "Hi"
            await stopping

    asyncio.run(scenario())

"""A server that is full says so at once, and counts right whatever becomes of what it took."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.admission import Admission
from engine.api.app import create_app
from engine.api.errors import ApiError
from tests.engine.api.test_app import client_of
from tests.engine.fakes import RecordingCore, served_model
from tests.engine.serving import serving

HI: dict[str, Any] = {"prompt": "say:Hi#"}


@given(st.integers(1, 20), st.lists(st.tuples(st.sampled_from("+-"), st.integers(1, 25)), max_size=40))
def test_never_more_than_the_limit_and_all_is_given_back(limit: int, moves: list[tuple[str, int]]) -> None:
    admission, inside = Admission(limit), []
    for move, number in moves:
        if move == "-":
            if inside:
                place, _ = inside.pop(number % len(inside))
                place.__exit__(None, None, None)
            continue
        place = admission.admit(number)
        fits = number <= limit - sum(held for _, held in inside)
        if fits:
            place.__enter__()
            inside.append((place, number))
            continue
        with pytest.raises(ApiError) as refused:
            place.__enter__()
        assert refused.value.status == (400 if number > limit else 429)
    assert admission.admitted == sum(held for _, held in inside) <= limit
    for place, _ in inside:
        place.__exit__(None, None, None)
    assert admission.admitted == 0


def test_what_is_too_much_now_is_a_429(text_side: Path) -> None:
    served = served_model(text_side)
    core = served.engine.core
    assert isinstance(core, RecordingCore)
    app = create_app(served, max_requests=4)

    async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
        return await client.post("/v1/completions", json=HI | fields)

    async def scenario() -> None:
        async with client_of(app) as client:
            core.open.clear()
            held = [asyncio.create_task(ask(client, prompt=[HI["prompt"]] * 2)), asyncio.create_task(ask(client))]
            while app.state.admission.admitted < 3:
                await asyncio.sleep(0.001)
            full = await ask(client, n=2)
            assert full.status_code == 429
            assert float(full.headers["retry-after"]) > 0
            error = full.json()["error"]
            assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
            assert "3 of 4" in error["message"]
            # Before the chat template, which would refuse it, has seen it.
            talk = {"messages": [{"role": "user", "content": "refuse me"}], "n": 2}
            assert (await client.post("/v1/chat/completions", json=talk)).status_code == 429
            never = await ask(client, n=5)
            assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
            for path in ("/health", "/v1/models", "/metrics"):
                assert (await client.get(path)).status_code == 200
            assert (await client.post("/tokenize", json={"prompt": "a"})).status_code == 200
            core.open.set()
            assert [(await one).status_code for one in held] == [200, 200]
            assert (await ask(client, n=4)).status_code == 200

    asyncio.run(scenario())
    assert app.state.admission.admitted == 0


def test_whatever_becomes_of_a_call_its_place_is_free_again(text_side: Path) -> None:
    served = served_model(text_side)
    core = served.engine.core
    assert isinstance(core, RecordingCore)
    app = create_app(served)
    calls = [
        HI | {"prompt": ""},
        HI | {"prompt": "a" * 400},
        HI | {"prompt": "crash!"},
        HI | {"prompt": "say:boom, and more#", "stream": True},
        HI | {"stream": True},
        HI | {"temperature": -1},
    ]
    with serving(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        statuses = [client.post("/v1/completions", json=call).status_code for call in calls]
        assert statuses == [400, 400, 500, 200, 200, 400]
        core.open.clear()
        for stream in (False, True):
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=HI | {"stream": stream}, timeout=0.1)
        core.open.set()
        assert client.post("/v1/completions", json=HI).status_code == 200
    assert app.state.admission.admitted == 0


def test_openais_client_waits_and_asks_again(text_side: Path) -> None:
    """The client that everybody has takes the 429 for what it is."""
    served = served_model(text_side)
    app = create_app(served, max_requests=1)
    with serving(app) as url:
        app.state.admission.admitted = 1
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError):
                client.completions.create(model="obedient", prompt="say:Hi#")
            app.state.admission.admitted = 0
            assert client.completions.create(model="obedient", prompt="say:Hi#").choices[0].text == "Hi"

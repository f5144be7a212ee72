"""With keys configured, nobody without one is served, and whoever probes or scrapes still is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from engine.api.app import create_app
from engine.api.auth import OPEN_PATHS
from tests.engine.fakes import served_model
from tests.engine.serving import serving

KEYS = ["sk-first", "sk-second"]
ASKED = {"prompt": "say:Hi#"}


@pytest.fixture(scope="module")
def guarded(text_side: Path) -> Iterator[httpx.Client]:
    with (
        serving(create_app(served_model(text_side), api_keys=KEYS)) as url,
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        yield client


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Bearer "])
def test_each_key_opens(guarded: httpx.Client, key: str, scheme: str) -> None:
    answer = guarded.post("/v1/completions", json=ASKED, headers={"authorization": f"{scheme} {key}"})
    assert answer.json()["choices"][0]["text"] == "Hi"


WRONG = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer sk-firs"},
    {"authorization": "Bearer sk-firstt"},
    {"authorization": "Bearer SK-FIRST"},
    {"authorization": "Bearer sk-first sk-second"},
    {"authorization": "Basic sk-first"},
    {"authorization": "sk-first"},
    {"authorization": b"Bearer \xff\xe9"},
    {"x-api-key": "sk-first"},
]


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_anything_else_does_not(guarded: httpx.Client, headers: dict[str, str]) -> None:
    response = guarded.post("/v1/completions", content=b"no JSON", headers=headers)  # refused before it is read
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)


def test_two_headers_are_not_one(guarded: httpx.Client) -> None:
    headers = [("authorization", "Bearer sk-first"), ("authorization", "Bearer sk-wrong")]
    assert guarded.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/obedient"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/health"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/no/such/route"),
        ("OPTIONS", "/v1/models"),
    ],
)
def test_every_route_but_the_open_ones_needs_a_key(guarded: httpx.Client, method: str, path: str) -> None:
    assert guarded.request(method, path).status_code == 401


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_open_routes(guarded: httpx.Client, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_openais_client_tells_them_apart(guarded: httpx.Client) -> None:
    url = str(guarded.base_url.join("/v1"))
    with openai.OpenAI(base_url=url, api_key="sk-second", max_retries=0) as client:
        assert client.completions.create(model="obedient", prompt="say:Hi#").choices[0].text == "Hi"
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_without_keys_any_key_is_as_good_as_none(http: httpx.Client) -> None:
    for headers in WRONG:
        assert http.post("/v1/completions", json=ASKED, headers=headers).status_code == 200

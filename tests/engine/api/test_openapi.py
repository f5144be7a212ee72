"""The description of the API says what the server does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from pydantic import BaseModel
from starlette.routing import Route

from engine.api import responses
from engine.api.app import create_app
from engine.api.openapi import describe
from engine.api.protocol import ChatRequest, CompletionRequest, GenerationRequest
from engine.api.strict import Strict
from reference.serving.request import RequestError, SamplingParams
from tests.engine.api.conftest import Post
from tests.engine.api.test_errors import CASES, CHAT, COMPLETIONS, ENDPOINTS
from tests.engine.fakes import served_model

DESCRIPTION = describe()


def validator(model: type[BaseModel]) -> Any:
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return jsonschema_rs.Draft202012Validator(reference | {"components": DESCRIPTION["components"]})


def test_it_is_served_and_names_every_route(text_side: Path, http: httpx.Client) -> None:
    assert http.get("/openapi.json").json() == json.loads(json.dumps(DESCRIPTION))
    routes = {
        (route.path.replace("{name:path}", "{name}"), method)
        for route in create_app(served_model(text_side)).routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = {(path, method.upper()) for path, methods in DESCRIPTION["paths"].items() for method in methods}
    assert described == routes


def test_a_key_is_asked_for_where_it_is_needed() -> None:
    paths = describe(needs_key=True)["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            guarded = path.startswith("/v1/") or path in ("/tokenize", "/detokenize")
            assert ("security" in operation) == ("401" in operation["responses"]) == guarded, path


def test_every_reference_leads_somewhere() -> None:
    def references(part: Any) -> set[str]:
        if isinstance(part, list):
            return set().union(*map(references, part))
        if isinstance(part, dict):
            own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
            return own.union(*map(references, part.values()))
        return set()

    schemas = {f"#/components/schemas/{name}" for name in DESCRIPTION["components"]["schemas"]}
    assert references(DESCRIPTION) == schemas


@pytest.mark.parametrize(("path", "model"), [("completions", CompletionRequest), ("chat/completions", ChatRequest)])
def test_the_schema_refuses_most_of_what_the_server_refuses(path: str, model: type[Strict]) -> None:
    """Not all: which parameters go together, what the template takes and how long the context is, it does not know."""
    schema = validator(model)
    assert schema.is_valid(ENDPOINTS[path])
    known = [schema.is_valid(ENDPOINTS[path] | fields) for at, _, fields in CASES if at == path]
    assert known.count(False) > 0.8 * len(known)


@pytest.mark.parametrize(("fields", "model"), [(COMPLETIONS, CompletionRequest), (CHAT, ChatRequest)])
def test_the_schema_takes_null_for_what_is_optional_and_refuses_what_is_unknown(
    fields: dict[str, Any], model: type[Strict]
) -> None:
    schema = validator(model)
    optional = {name: None for name, field in model.model_fields.items() if not field.is_required()}
    assert schema.is_valid(fields | optional | dict.fromkeys(model.unsupported))
    model.model_validate(fields | optional | dict.fromkeys(model.unsupported))
    for unknown in (None, 1):
        assert not schema.is_valid(fields | {"surprise": unknown})
        with pytest.raises(ValueError, match="surprise"):
            model.model_validate(fields | {"surprise": unknown})


@pytest.mark.parametrize(("fields", "model"), [(COMPLETIONS, CompletionRequest), (CHAT, ChatRequest)])
def test_the_schema_says_of_unsupported_parameters_which_values_ask_for_nothing(
    fields: dict[str, Any], model: type[Strict]
) -> None:
    schema = validator(model)
    for name, values in model.unsupported.items():
        for value in (*values, None):
            assert schema.is_valid(fields | {name: value}), name
        assert not schema.is_valid(fields | {name: {"ask": "for it"}}), name


def limits() -> list[tuple[str, str, float]]:
    """(parameter, kind of limit, limit) of the numbers that SamplingParams checks as well."""
    found = []
    for name, described in GenerationRequest.model_json_schema()["properties"].items():
        if name in SamplingParams.__dataclass_fields__:
            for part in described.get("anyOf", [described]):
                found += [(name, kind, part[kind]) for kind in part if kind.lower().endswith(("minimum", "maximum"))]
    return found


@pytest.mark.parametrize(("name", "kind", "limit"), [one for one in limits() if one[0] != "seed"])
def test_ranges_are_those_of_sampling_params(name: str, kind: str, limit: float) -> None:
    """The body's ranges are neither wider nor narrower, but for top_k, where -1 is vLLM's way to say 0."""
    if (name, kind) == ("top_k", "minimum"):
        assert limit == -1
        limit = 0
    outward = -1 if kind in ("minimum", "exclusiveMinimum") else 1
    inner = limit if kind in ("minimum", "maximum") else limit - outward * 1e-9
    SamplingParams(**{name: inner})  # type: ignore[arg-type]
    outer = limit + outward if kind in ("minimum", "maximum") else limit
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: outer})  # type: ignore[arg-type]


def test_the_ranges_are_found() -> None:
    """Else the test above would hold nothing together."""
    assert {"n", "temperature", "top_p", "min_p", "max_tokens", "presence_penalty"} <= {name for name, _, _ in limits()}


FULL: dict[str, Any] = {"n": 2, "max_tokens": 3, "prompt_logprobs": 2, "ignore_eos": True, "stop": ["xyz"]}


def test_answers_are_as_described(http: httpx.Client, post: Post) -> None:
    def fits(model: type[BaseModel], answer: Any) -> None:
        assert validator(model).is_valid(answer), [str(e)[:300] for e in validator(model).iter_errors(answer)]

    fits(responses.Completion, post("completions", **COMPLETIONS))
    fits(responses.Completion, post("completions", **COMPLETIONS, **FULL, logprobs=2, echo=True))
    fits(responses.ChatCompletion, post("chat/completions", **CHAT))
    fits(responses.ChatCompletion, post("chat/completions", **CHAT, **FULL, logprobs=True, top_logprobs=2))
    fits(responses.ModelList, http.get("/v1/models").json())
    fits(responses.Model, http.get("/v1/models/obedient").json())
    fits(responses.HealthStatus, http.get("/health?generate=1").json())
    fits(responses.Version, http.get("/version").json())
    fits(responses.Description, http.get("/openapi.json").json())
    fits(responses.Tokenized, http.post("/tokenize", json={"prompt": "a", "return_token_strs": True}).json())
    fits(responses.Detokenized, http.post("/detokenize", json={"tokens": [1]}).json())
    fits(responses.Error, http.get("/nowhere").json())
    with pytest.raises(AssertionError):
        fits(responses.Completion, post("completions", **COMPLETIONS) | {"surprise": 1})

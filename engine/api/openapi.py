"""/openapi.json: the API described in OpenAPI 3.1, made from the models that check bodies and from `responses.py`.

A body that fits its schema may still be refused with a 400: the schema does not know the context's length, the ids of
the model, or which parameters go together.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from engine.api import responses
from engine.api.auth import OPEN_PATHS
from engine.api.protocol import ChatRequest, CompletionRequest
from engine.api.request_id import HEADER as REQUEST_ID
from engine.api.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest
from engine.version import VERSION

Json = dict[str, Any]

_JSON = "application/json"
_STRING: Json = {"type": "string"}
_EVENTS: Json = {
    "text/event-stream": {
        "schema": _STRING | {"description": "With `stream`: events of one JSON object each, and `[DONE]` at the end."}
    }
}
_PAGE: Json = {kind: {"schema": _STRING} for kind in ("text/plain", "application/openmetrics-text")}
_BODY_ERRORS = (400, 404, 408, 413)
_ANSWER_ERRORS = (*_BODY_ERRORS, 429, 500, 503)
_REQUESTS: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatRequest,
    TokenizeRequest,
    TokenizeChatRequest,
    DetokenizeRequest,
)
_RESPONSES: tuple[type[BaseModel], ...] = (
    responses.Completion,
    responses.ChatCompletion,
    responses.Tokenized,
    responses.Detokenized,
    responses.Model,
    responses.ModelList,
    responses.HealthStatus,
    responses.Version,
    responses.Description,
    responses.Error,
)
_HEADERS_OF = {401: "WWW-Authenticate", 429: "Retry-After"}


def describe(*, needs_key: bool = False) -> Json:
    """The description. needs_key: clients need an API key, but for the open paths."""
    paths = {
        "/v1/completions": {
            "post": _operation(
                "Continue prompts",
                _json(responses.Completion) | _EVENTS,
                _ANSWER_ERRORS,
                body=_ref(CompletionRequest),
            )
        },
        "/v1/chat/completions": {
            "post": _operation(
                "The next turn of a conversation",
                _json(responses.ChatCompletion) | _EVENTS,
                _ANSWER_ERRORS,
                body=_ref(ChatRequest),
            )
        },
        "/v1/models": {"get": _operation("The models that are served", _json(responses.ModelList))},
        "/v1/models/{name}": {
            "get": _operation(
                "A model", _json(responses.Model), (404,), parameters=[_parameter("name", "path", _STRING)]
            )
        },
        "/tokenize": {
            "post": _operation(
                "The token ids of a text or a conversation",
                _json(responses.Tokenized),
                _BODY_ERRORS,
                body={"oneOf": [_ref(TokenizeRequest), _ref(TokenizeChatRequest)]},
            )
        },
        "/detokenize": {
            "post": _operation(
                "The text of token ids", _json(responses.Detokenized), _BODY_ERRORS, body=_ref(DetokenizeRequest)
            )
        },
        "/health": {
            "get": _operation(
                "Whether requests are taken; with generate=1, after generating a token",
                _json(responses.HealthStatus),
                (400,),
                parameters=[_parameter("generate", "query", {"enum": ["0", "1"]})],
                others={"503": _response("It does not work", _json(responses.HealthStatus))},
            )
        },
        "/metrics": {"get": _operation("Metrics for Prometheus", _PAGE)},
        "/version": {"get": _operation("The version of Diptych", _json(responses.Version))},
        "/openapi.json": {"get": _operation("This description", _json(responses.Description))},
    }
    if needs_key:
        for path in paths.keys() - OPEN_PATHS:
            for operation in paths[path].values():
                operation["security"] = [{"key": []}]
                operation["responses"]["401"] = _error(401)
    _, schemas = models_json_schema(
        [(model, "validation") for model in (*_REQUESTS, *_RESPONSES)], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Diptych", "version": VERSION, "description": "One Qwen3 model, in OpenAI's shapes."},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}} if needs_key else {},
        },
    }


def _operation(
    summary: str,
    content: Json,
    errors: tuple[int, ...] = (),
    *,
    body: Json | None = None,
    parameters: list[Json] | None = None,
    others: Json | None = None,
) -> Json:
    operation: Json = {
        "summary": summary,
        "responses": {
            "200": _response("As asked", content),
            **{str(status): _error(status) for status in errors},
            **(others or {}),
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    return operation


def _response(description: str, content: Json, *headers: str) -> Json:
    return {
        "description": description,
        "content": content,
        "headers": {name: {"required": True, "schema": _STRING} for name in (REQUEST_ID, *headers)},
    }


def _error(status: int) -> Json:
    headers = [_HEADERS_OF[status]] if status in _HEADERS_OF else []
    return _response(HTTPStatus(status).phrase, _json(responses.Error), *headers)


def _json(model: type[BaseModel]) -> Json:
    return {_JSON: {"schema": _ref(model)}}


def _ref(model: type[BaseModel]) -> Json:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _parameter(name: str, place: str, schema: Json) -> Json:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}

"""The ASGI application: routes, limits, errors, and an engine that runs as long as the server does.

What a slow client holds: one that does not send its body, BODY_SECONDS; one that does not read, SEND_SECONDS; one that
sends no whole head of a request, a socket for as long as it likes, which uvicorn puts no limit to (a proxy would).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.api import models
from engine.api.admission import MAX_REQUESTS, Admission
from engine.api.answer import Answer
from engine.api.auth import ApiKeys
from engine.api.body import BODY_SECONDS, MAX_BODY_BYTES, parse, read_body
from engine.api.chat import ChatAnswer
from engine.api.completions import CompletionAnswer
from engine.api.errors import HANDLERS
from engine.api.health import HEALTH_SECONDS, Health
from engine.api.openapi import describe
from engine.api.protocol import ChatRequest, CompletionRequest, GenerationRequest
from engine.api.request_id import RequestIds
from engine.api.served import ServedModel
from engine.api.streaming import in_time
from engine.api.tokenize import detokenize, tokenize
from engine.version import VERSION

DRAIN_SECONDS = 30.0

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    served: ServedModel,
    *,
    api_keys: Iterable[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    body_seconds: float = BODY_SECONDS,
    max_requests: int = MAX_REQUESTS,
    health_seconds: float = HEALTH_SECONDS,
    drain_seconds: float = DRAIN_SECONDS,
) -> Starlette:
    """The API of one model. Its engine starts and stops with the application.

    api_keys: clients need one of them; with none, anybody is served. max_body_bytes, body_seconds: how large the body
    of a request may be, and how long it may take to come. max_requests: choices asked for at once. health_seconds: how
    long /health?generate=1 waits for its token. drain_seconds: how long running requests may go on when the server
    stops.
    """
    keys = list(api_keys)
    admission = Admission(max_requests)
    read = partial(read_body, limit=max_body_bytes, seconds=body_seconds)

    @asynccontextmanager
    async def engine_runs(_: Starlette) -> AsyncIterator[None]:
        served.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(served.engine.stop, drain_seconds)

    def answers(model: type[GenerationRequest], prepare: Callable[[ServedModel, Any], Answer]) -> ASGIApp:
        def parsed(raw: bytes) -> GenerationRequest:
            body = parse(model, raw)
            served.check_name(body.model)
            return body

        return _Answers(served, admission, read, parsed, prepare)

    def computed(compute: Callable[[ServedModel, bytes], dict[str, Any]]) -> Endpoint:
        async def endpoint(http: Request) -> Response:
            raw = await read(http)
            return JSONResponse(await asyncio.to_thread(compute, served, raw))

        return endpoint

    app = _Application(
        routes=[
            Route("/health", Health(served, health_seconds).check),
            Route("/version", version),
            Route("/metrics", metrics),
            Route("/openapi.json", openapi),
            Route("/tokenize", computed(tokenize), methods=["POST"]),
            Route("/detokenize", computed(detokenize), methods=["POST"]),
            Route("/v1/models", models.list_models),
            Route("/v1/models/{name:path}", models.retrieve_model),
            Route("/v1/completions", answers(CompletionRequest, CompletionAnswer.prepare), methods=["POST"]),
            Route("/v1/chat/completions", answers(ChatRequest, ChatAnswer.prepare), methods=["POST"]),
        ],
        middleware=[Middleware(ApiKeys, keys=keys)] if keys else [],
        exception_handlers=HANDLERS,
        lifespan=engine_runs,
    )
    app.router.redirect_slashes = False  # an unknown route is a 404 that says so
    app.state.served = served
    app.state.admission = admission
    app.state.description = describe(needs_key=bool(keys))
    return app


class _Application(Starlette):
    def build_middleware_stack(self) -> ASGIApp:
        # Outside of what answers exceptions, so that those responses are named too.
        return RequestIds(super().build_middleware_stack())


class _Answers:
    """The endpoint of one kind of answer. An ASGI application, for a stream counts as long as it is sent."""

    def __init__(
        self,
        served: ServedModel,
        admission: Admission,
        read: Callable[[Request], Awaitable[bytes]],
        parsed: Callable[[bytes], GenerationRequest],
        prepare: Callable[[ServedModel, Any], Answer],
    ) -> None:
        self._served, self._admission = served, admission
        self._read, self._parsed, self._prepare = read, parsed, prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        raw = await self._read(http)
        # In threads: a long body takes long to check and to tokenize, and other streams go on meanwhile.
        body = await asyncio.to_thread(self._parsed, raw)
        with self._admission.admit(body.num_choices):
            answer = await asyncio.to_thread(self._prepare, self._served, body)
            response = await answer.respond(http)
            with suppress(ClientDisconnect):
                await response(scope, receive, in_time(send))


async def version(_: Request) -> Response:
    """GET /version."""
    return JSONResponse({"version": VERSION})


async def metrics(http: Request) -> Response:
    """GET /metrics, as Prometheus reads it."""
    page, content_type = http.app.state.served.engine.metrics.page(http.headers.get("accept", ""))
    return Response(page, headers={"content-type": content_type})


async def openapi(http: Request) -> Response:
    """GET /openapi.json."""
    return JSONResponse(http.app.state.description)

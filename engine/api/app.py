"""The ASGI application: routes, errors, and an engine that runs as long as the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api import models
from engine.api.answer import Answer
from engine.api.body import MAX_BODY_BYTES, Body, parse, read_body
from engine.api.chat import ChatAnswer
from engine.api.completions import CompletionAnswer
from engine.api.errors import HANDLERS
from engine.api.protocol import ChatRequest, CompletionRequest
from engine.api.served import ServedModel
from engine.version import VERSION

DRAIN_SECONDS = 30.0

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    served: ServedModel, *, max_body_bytes: int = MAX_BODY_BYTES, drain_seconds: float = DRAIN_SECONDS
) -> Starlette:
    """The API of one model. Its engine starts and stops with the application."""

    @asynccontextmanager
    async def engine_runs(_: Starlette) -> AsyncIterator[None]:
        served.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(served.engine.stop, drain_seconds)

    def answers(model: type[Body], prepare: Callable[[ServedModel, Body], Answer]) -> Endpoint:
        def prepared(raw: bytes) -> Answer:
            body = parse(model, raw)
            served.check_name(body.model)
            return prepare(served, body)

        async def answer(http: Request) -> Response:
            raw = await read_body(http, max_body_bytes)
            # In a thread: a long prompt takes long to check and to tokenize, and other streams go on meanwhile.
            return await (await asyncio.to_thread(prepared, raw)).respond(http)

        return answer

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/version", version),
            Route("/v1/models", models.list_models),
            Route("/v1/models/{name:path}", models.retrieve_model),
            Route("/v1/completions", answers(CompletionRequest, CompletionAnswer.prepare), methods=["POST"]),
            Route("/v1/chat/completions", answers(ChatRequest, ChatAnswer.prepare), methods=["POST"]),
        ],
        exception_handlers=HANDLERS,
        lifespan=engine_runs,
    )
    app.router.redirect_slashes = False  # an unknown route is a 404 that says so
    app.state.served = served
    return app


async def health(http: Request) -> Response:
    """GET /health: 200 while requests are taken, else 503."""
    alive = http.app.state.served.engine.alive
    return JSONResponse({"status": "ok" if alive else "stopping"}, 200 if alive else 503)


async def version(_: Request) -> Response:
    """GET /version."""
    return JSONResponse({"version": VERSION})

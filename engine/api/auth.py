"""API keys: `Authorization: Bearer KEY`.

Every route needs a key but those in OPEN_PATHS, which tell nothing of what clients ask: probes, scrapers and readers of
the API's description rarely carry one. Whoever may not reach those either is kept off by the network.
Source: RFC 6750; the OpenAI API reference.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.api.errors import ApiError, error_response

OPEN_PATHS = frozenset({"/health", "/version", "/metrics", "/openapi.json"})


class ApiKeys:
    """ASGI middleware that lets through who has one of the keys, before the body is read."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        # Hashes have one length, so comparing them does not tell the length of a key.
        self._hashes = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist("authorization")
        if self._are_known(given):
            await self._app(scope, receive, send)
            return
        wrong = "this API key is not known here" if given else "an API key is needed: Authorization: Bearer KEY"
        refusal = ApiError(
            HTTPStatus.UNAUTHORIZED, wrong, code="invalid_api_key", headers={"www-authenticate": "Bearer"}
        )
        await error_response(Request(scope), refusal)(scope, receive, send)

    def _are_known(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(" ")
        hashed = sha256(key.strip().encode()).digest()
        # All are compared, whichever fits: the time does not tell.
        return scheme.lower() == "bearer" and any([hmac.compare_digest(hashed, known) for known in self._hashes])

"""X-Request-Id: a name for each request, for whoever reads the logs of the client and of the server.

The client's own name is kept if it is printable ASCII without spaces, of at most 128 characters; else the server makes
one. Every response carries it, errors too.
"""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_CLIENTS = re.compile("[!-~]{1,128}")

_current: ContextVar[str | None] = ContextVar("request_id", default=None)


def current_request_id() -> str | None:
    """The name of the request that is being answered; None outside of one."""
    return _current.get()


class RequestIds:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        name = given if _CLIENTS.fullmatch(given) else uuid.uuid4().hex

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        _current.set(name)
        await self._app(scope, receive, send_named)

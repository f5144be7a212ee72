"""Server-sent events, and clients that leave.

An event is `data: ` and one JSON object; the last is `data: [DONE]`. A client that leaves cancels the work for it, and
cancelled work aborts its requests in the engine.
Source: the HTML standard, section 9.2; OpenAI's API reference.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.api.errors import as_api_error

DONE = "data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # the second tells nginx to pass events on at once
SEND_SECONDS = 60.0

_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}  # those that JSON leaves in strings

T = TypeVar("T")


def one_line(data: dict[str, Any]) -> str:
    """JSON in one line, for readers too that take U+2028 for a line's end."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)


def event(data: dict[str, Any]) -> str:
    """One event."""
    return f"data: {one_line(data)}\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Errors: ClientDisconnect, those of `work`."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def in_time(send: Send, seconds: float = SEND_SECONDS) -> Send:
    """`send`, for a client that may not read: one that has taken nothing for so long has left. Errors (of what is
    returned): ClientDisconnect."""

    async def send_in_time(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            raise ClientDisconnect from None

    return send_in_time


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come: the first, which is there already, then the others.

    The first event is awaited before the response starts, so what fails before it has an honest status. What fails
    later ends the stream with an event that holds the error, without [DONE].
    """

    media_type = "text/event-stream"

    def __init__(self, first: str, others: AsyncGenerator[str, None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._first, self._others = first, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._others):
            with suppress(ClientDisconnect):
                await until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async def body(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await body(self._first)
        try:
            async for text in self._others:
                await body(text)
            await body(DONE, more=False)
        except ClientDisconnect:
            raise
        except Exception as error:
            await body(event(as_api_error(error).body), more=False)

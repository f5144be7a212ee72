"""A client that leaves takes its work with it, whenever it leaves; events are well formed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from engine.api.served import ServedModel
from engine.api.streaming import EventStream, event, in_time, until_disconnect
from engine.loop import EngineError
from tests.engine.api.conftest import Post
from tests.engine.fakes import RecordingCore


@pytest.fixture
def core(served: ServedModel) -> Iterator[RecordingCore]:
    core = served.engine.core
    assert isinstance(core, RecordingCore)
    core.aborted.clear()
    yield core
    core.open.set()


def wait_for_aborts(core: RecordingCore, number: int) -> None:
    deadline = time.monotonic() + 5
    while len(core.aborted) < number or core.has_work():
        assert time.monotonic() < deadline, f"{core.aborted} are aborted, {core._samples} run on"
        time.sleep(0.005)


LONG: dict[str, Any] = {"prompt": ["babble", "rabble"], "max_tokens": 300, "ignore_eos": True, "n": 2}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "babble"}], "ignore_eos": True}


Asked = tuple[str, dict[str, Any], int]  # path, fields, requests that it makes to the engine


@pytest.mark.parametrize(
    "asked", [("completions", LONG, 2), ("chat/completions", CHAT, 1)], ids=["completions", "chat"]
)
class TestLeaving:
    def test_in_the_middle_of_a_stream(
        self, http: httpx.Client, core: RecordingCore, caplog: pytest.LogCaptureFixture, asked: Asked
    ) -> None:
        path, fields, requests = asked
        with http.stream("POST", f"/v1/{path}", json={**fields, "stream": True}) as response:
            assert next(response.iter_lines()).startswith("data: {")
            core.open.clear()  # it leaves while a step is in flight
        core.open.set()
        wait_for_aborts(core, requests)
        response = http.post("/v1/completions", json={"prompt": "say:Hi#"})
        assert response.json()["choices"][0]["text"] == "Hi"
        assert not caplog.records, "a client that leaves is no error of the server"

    @pytest.mark.parametrize("stream", [False, True])
    def test_before_anything_came(self, http: httpx.Client, core: RecordingCore, asked: Asked, stream: bool) -> None:
        path, fields, requests = asked
        core.open.clear()
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"/v1/{path}", json={**fields, "stream": stream}, timeout=0.2)
        core.open.set()
        wait_for_aborts(core, requests)


def test_a_finished_answer_is_not_aborted(core: RecordingCore, post: Post) -> None:
    post("completions", prompt="say:Hi#")
    time.sleep(0.05)
    assert not core.aborted


def test_an_event_is_one_line_of_json() -> None:
    said = 'a\nb\r\x0b\x85\u2028\u2029"é😀'
    text = event({"text": said})
    line, nothing = text.splitlines()  # str.splitlines knows more line ends than any client should
    assert (text[-2:], nothing) == ("\n\n", "")
    assert json.loads(line.removeprefix("data: ")) == {"text": said}
    assert "é😀" in line


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def left() -> Message:
    return {"type": "http.disconnect"}


def test_until_disconnect() -> None:
    cancelled = []

    async def work(seconds: float) -> int:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(seconds)
            raise
        if not seconds:
            raise EngineError("work")
        return 5

    async def scenario() -> None:
        assert await until_disconnect(never, work(0.001)) == 5
        with pytest.raises(EngineError, match="work"):
            await until_disconnect(never, work(0))
        with pytest.raises(ClientDisconnect):
            await until_disconnect(left, work(10))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(until_disconnect(never, work(20)), 0.01)
        assert cancelled == [10, 20]

    asyncio.run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_stream_sends(fails: bool) -> None:
    closed = []

    async def others() -> AsyncGenerator[str, None]:
        try:
            yield "b"
            if fails:
                raise EngineError("no more")
        finally:
            closed.append(True)

    async def scenario() -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await EventStream("a", others())({"type": "http"}, never, send)
        return sent

    start, *bodies = asyncio.run(scenario())
    headers = dict(start["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-cache"
    assert b"content-length" not in headers
    assert [body["body"] for body in bodies[:2]] == [b"a", b"b"]
    assert [body["more_body"] for body in bodies] == [True, True, False]
    assert (b"no more" in bodies[-1]["body"]) == fails
    assert (b"[DONE]" in bodies[-1]["body"]) != fails
    assert closed


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_a_client_that_does_not_read_has_left(taken: int) -> None:
    """It takes that many messages of four, and then no more."""
    closed, sent = [], []

    async def others() -> AsyncGenerator[str, None]:
        try:
            yield "b"
        finally:
            closed.append(True)

    async def send(message: Message) -> None:
        if len(sent) == taken:
            await asyncio.Event().wait()
        sent.append(message)

    async def scenario() -> None:
        await EventStream("a", others())({"type": "http"}, never, in_time(send, 0.01))

    asyncio.run(asyncio.wait_for(scenario(), 5))
    assert len(sent) == taken
    assert closed or taken < 2, "what makes the events goes on"


def test_a_client_that_reads_is_not_hurried() -> None:
    sent = []

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(in_time(send, 0.01)({"type": "anything"}))
    assert sent == [{"type": "anything"}]

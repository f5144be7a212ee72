"""The loop: one thread that drives a Core, and the asyncio side that talks to it.

    event loop(s)                      worker thread
    generate(request) --commands-->    obey: core.add, core.abort
          ^                            core.step()
          +---------- outputs ---------+

The worker alone calls the Core, so a Core needs no locks. Commands cross by one queue and are obeyed between steps, in
order; the outputs of a step cross back in one wake-up a stream. With nothing to do the worker sleeps in that queue.

What ends a stream: all samples finished; RequestError (the Core refused it); EngineError (a step failed: every running
request fails, and the loop lives on); EngineLost (the same, and the loop ends: its device is lost); EngineStopped. A
stream that is closed or cancelled aborts its requests.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial

from engine.metrics import Metrics
from reference.serving.request import Core, FinishReason, Request, RequestError, RequestOutput
from reference.serving.runner import DeviceLost

log = logging.getLogger(__name__)


class EngineError(RuntimeError):
    """The engine failed under a request that was in order. The next request is served."""


class EngineLost(EngineError):
    """What the engine computes on failed for good. This process takes no more requests; another one may."""


class EngineStopped(RuntimeError):
    """The engine is stopping or has stopped, and takes no requests."""


@dataclass(eq=False)
class _Stream:
    """Requests that were asked for together, and the queue of the event loop that waits for their outputs."""

    requests: tuple[Request, ...]
    unfinished: dict[str, int]  # samples of each request that have not ended; the worker's
    asked: float  # when, by the clock of the metrics
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    items: asyncio.Queue[RequestOutput | Exception] = field(default_factory=asyncio.Queue)

    def send(self, *items: RequestOutput | Exception) -> bool:
        """Hand items over, from the worker. False if the event loop is gone."""
        try:
            self.loop.call_soon_threadsafe(self._receive, items)
        except RuntimeError:  # the event loop was closed without closing the stream
            return False
        return True

    def _receive(self, items: tuple[RequestOutput | Exception, ...]) -> None:
        for item in items:
            self.items.put_nowait(item)


class AsyncEngine:
    """Serves requests of any number of tasks and event loops from one Core."""

    def __init__(self, core: Core, metrics: Metrics | None = None) -> None:
        self.core = core
        self.metrics = metrics or Metrics()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._gate = threading.Lock()  # nothing is asked for after the worker was told to stop
        self._accepting = False
        self._given_up_at: float | None = None  # once told to stop: when running requests are given up
        self._deadline: float | None = None  # the same, as the worker knows it
        self._streams: dict[str, _Stream] = {}  # by request id; the worker's
        self.lost = False  # did the loop end by EngineLost?
        self.on_lost: Callable[[], None] = lambda: None  # called by the worker when it has
        self._worker = threading.Thread(target=self._run, name="diptych-loop", daemon=True)

    @property
    def max_model_len(self) -> int:
        return self.core.max_model_len

    @property
    def alive(self) -> bool:
        """Would a request be taken?"""
        return self._accepting and self._worker.is_alive()

    def start(self) -> None:
        """Start the worker. Once."""
        self._accepting = True
        self._worker.start()

    def stop(self, limit: float = 30.0) -> None:
        """Take no more requests, let the running ones finish for at most `limit` seconds, end the worker. To be told so
        again changes nothing.

        Blocks (from a coroutine: `asyncio.to_thread`). Requests that are unfinished then get EngineStopped.
        """
        with self._gate:
            self._accepting = False
            if self._given_up_at is None:
                self._given_up_at = time.monotonic() + limit
                self._commands.put(partial(self._drain_until, self._given_up_at))
        if self._worker.is_alive():
            # A step in flight may end after the limit; one that hangs is left behind.
            self._worker.join(max(0.0, self._given_up_at + 5.0 - time.monotonic()))

    async def generate(self, *requests: Request) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request, or of several that stand and fall together, as they come.

        Errors: RequestError, EngineError, EngineStopped; each aborts all that is unfinished.
        """
        unfinished_samples = {request.request_id: request.params.n for request in requests}
        stream = _Stream(requests, unfinished_samples, self.metrics.clock())
        with self._gate:
            if not self.alive:
                raise EngineStopped("the engine is not running and takes no requests")
            self._commands.put(partial(self._add, stream))
        unfinished = sum(request.params.n for request in requests)
        try:
            while unfinished:
                item = await stream.items.get()
                if isinstance(item, Exception):
                    raise item
                unfinished -= item.finish_reason is not None
                yield item
        finally:
            if unfinished:
                self._commands.put(partial(self._drop, stream, FinishReason.ABORT))

    # Below, everything runs in the worker.

    def _run(self) -> None:
        busy = False
        try:
            while not self._drained():
                self._obey(wait=not busy)
                busy = self._advance()
                if not busy:
                    self.metrics.idle()
        finally:
            with self._gate:
                self._accepting = False
            self._obey(wait=False)
            self._fail_running(EngineStopped("the engine was stopped before the request was finished"))
            self.metrics.idle()

    def _drained(self) -> bool:
        return self._deadline is not None and (not self._streams or time.monotonic() >= self._deadline)

    def _drain_until(self, deadline: float) -> None:
        self._deadline = deadline

    def _obey(self, wait: bool) -> None:
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return
            command()
            wait = False

    def _advance(self) -> bool:
        """One step. Is there more to do at once?"""
        try:
            if self.core.has_work():
                self._deliver(self.core.step())
                return True
            if self._streams:
                raise RuntimeError(f"the core has no work, but {len(self._streams)} requests are unfinished")
        except DeviceLost as error:
            log.critical("the engine cannot go on", exc_info=error)
            with self._gate:
                self._accepting = False
            self.lost = True
            self._obey(wait=False)  # who asked in time is told the same
            self._fail_running(EngineLost(f"the engine cannot go on: {error}"))
            self._deadline = time.monotonic()
            self.on_lost()
        except Exception as error:
            # A core that failed is not stepped again before someone asks for something: no loop of failures.
            log.exception("a step of the engine failed")
            self._fail_running(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
        return False

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        self.metrics.put_out(outputs)
        mail: dict[_Stream, list[RequestOutput]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # aborted while the step was in flight
                continue
            mail.setdefault(stream, []).append(output)
            if output.finish_reason is not None:
                stream.unfinished[output.request_id] -= 1
                if not stream.unfinished[output.request_id]:
                    del self._streams[output.request_id]
        for stream, items in mail.items():
            if not stream.send(*items):
                self._drop(stream, FinishReason.ABORT)

    def _add(self, stream: _Stream) -> None:
        try:
            for request in stream.requests:
                if request.request_id in self._streams:
                    raise RequestError("request_id", f"a request with id {request.request_id!r} is running")
                self.core.add(request)
                self._streams[request.request_id] = stream
                self.metrics.accepted(request, stream.asked)
        except Exception as error:
            self._drop(stream, FinishReason.ERROR)
            if not isinstance(error, RequestError):
                log.exception("the engine failed to take a request")
                error = EngineError(f"the engine failed to take the request: {type(error).__name__}: {error}")
            stream.send(error)

    def _drop(self, stream: _Stream, reason: FinishReason) -> None:
        """Abort what is unfinished of a stream."""
        for request in stream.requests:
            if self._streams.get(request.request_id) is stream:
                del self._streams[request.request_id]
                self.metrics.dropped(request, reason)
                try:
                    self.core.abort(request.request_id)
                except Exception:
                    log.exception("the engine failed to abort request %s", request.request_id)

    def _fail_running(self, error: Exception) -> None:
        reason = FinishReason.ABORT if isinstance(error, EngineStopped) else FinishReason.ERROR
        for stream in set(self._streams.values()):
            self._drop(stream, reason)
            stream.send(error)

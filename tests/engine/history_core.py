"""A core without a model: the next token is a pure function of the history."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reference.serving.request import FinishReason, Request, RequestError, RequestOutput, SamplingParams
from reference.serving.runner import DeviceLost

LOSING = 97


def next_token(history: Sequence[int], index: int) -> int:
    """What HistoryCore says after a history: a pure function of it."""
    return (31 * sum(history) + 7 * len(history) + index) % 97


@dataclass
class HistoryCore:
    """A step gives every unfinished sample one token. What can go wrong with a core is switched on by its fields."""

    max_model_len: int = 100
    failing: set[str] = field(default_factory=set)  # a step fails while one of these runs
    open: threading.Event = field(default_factory=threading.Event)  # a step waits for this
    forgetful: bool = False  # says there is no work, though there is
    pause: float = 0.0  # seconds a step takes
    losing: int = -1  # the device is lost by a step with a request for so many tokens

    def __post_init__(self) -> None:
        self.open.set()
        self.samples: dict[tuple[str, int], list[int]] = {}
        self.requests: dict[str, Request] = {}
        self.added: list[str] = []
        self.aborted: list[str] = []
        self.steps = 0
        self.threads: set[int] = set()

    def add(self, request: Request) -> None:
        self.threads.add(threading.get_ident())
        if not request.prompt_token_ids:
            raise RequestError("prompt_token_ids", "the prompt is empty")
        if request.request_id.startswith("crash on add"):
            raise ZeroDivisionError("add")
        self.added.append(request.request_id)
        self.requests[request.request_id] = request
        for index in range(request.params.n):
            self.samples[request.request_id, index] = list(request.prompt_token_ids)

    def abort(self, request_id: str) -> None:
        self.threads.add(threading.get_ident())
        self.aborted.append(request_id)
        self.samples = {key: history for key, history in self.samples.items() if key[0] != request_id}

    def has_work(self) -> bool:
        return bool(self.samples) and not self.forgetful

    def step(self) -> list[RequestOutput]:
        self.threads.add(threading.get_ident())
        self.open.wait(10)
        time.sleep(self.pause)
        self.steps += 1
        if self.failing & {request_id for request_id, _ in self.samples}:
            raise ZeroDivisionError("step")
        if any(self.requests[request_id].params.max_tokens == self.losing for request_id, _ in self.samples):
            raise DeviceLost("the GPU takes no more work")
        return [self._advance(request_id, index) for request_id, index in list(self.samples)]

    def _advance(self, request_id: str, index: int) -> RequestOutput:
        request, history = self.requests[request_id], self.samples[request_id, index]
        token = next_token(history, index)
        history.append(token)
        limit = len(request.prompt_token_ids) + (request.params.max_tokens or self.max_model_len)
        finished = FinishReason.LENGTH if len(history) >= limit else None
        if finished:
            del self.samples[request_id, index]
        return RequestOutput(request_id, index, (token,), f"{token} ", finish_reason=finished)


def request(request_id: str, *prompt: int, **params: int) -> Request:
    return Request(request_id, prompt or (1, 2, 3), SamplingParams(**{"max_tokens": 5, **params}))  # type: ignore[arg-type]


def expected_tokens(request: Request, index: int = 0) -> list[int]:
    """What HistoryCore answers."""
    history = list(request.prompt_token_ids)
    for _ in range(request.params.max_tokens or 0):
        history.append(next_token(history, index))
    return history[len(request.prompt_token_ids) :]


def build_core(config: Any, tensors: Any, decode: Any, *, max_model_len: int, **_: Any) -> HistoryCore:
    """A panel of it, with steps slow enough to come between. A request for LOSING tokens loses its device."""
    return HistoryCore(max_model_len, pause=0.01, losing=LOSING)

"""An answer: the requests that a call makes to the engine, and what becomes of their outputs.

The same for both endpoints, which say only what a choice looks like. A stream and a whole answer are made of the same
outputs: the whole is formatted from each sample's outputs joined into one.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from engine.api.logprobs import prompt_logprobs, with_top
from engine.api.pieces import Content, Piece
from engine.api.protocol import GenerationRequest, StreamOptions
from engine.api.served import ServedModel
from engine.api.streaming import EventStream, event, until_disconnect
from engine.loop import EngineError
from reference.serving.request import FinishReason, Request, RequestError, RequestOutput, SamplingParams


@dataclass
class Answer(ABC):
    """One call's answer. `index` below numbers choices: sample s of prompt p is choice p * n + s."""

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    renamed: ClassVar[Mapping[str, str]]  # fields of the engine's request -> parameters of this endpoint

    served: ServedModel
    body: GenerationRequest
    prompts: list[list[int]]
    params: SamplingParams
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self.requests = [
            Request(f"{self.id}-{number}", tuple(prompt), self.params, self.body.priority)
            for number, prompt in enumerate(self.prompts)
        ]
        self._numbers = {request.request_id: number for number, request in enumerate(self.requests)}
        self._completion_tokens = 0

    @abstractmethod
    def choice(self, index: int, outputs: list[RequestOutput]) -> dict[str, Any]:
        """A choice of a whole answer, from all that its sample put out."""

    @abstractmethod
    def chunks(self, index: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices that an output adds to a stream."""

    def pieces(self, index: int, output: RequestOutput) -> list[Piece]:
        """What an output adds to the text of a choice, taken apart. For each output in turn, once."""
        return [Content(output.text)] if output.text else []

    def of_prompt(self, output: RequestOutput) -> dict[str, Any]:
        """`prompt_logprobs`, where they are asked for: beside a sample's text in completions, beside the choices in
        chat, where all have one prompt. As vLLM puts them."""
        if self.body.prompt_logprobs is None or output.prompt_logprobs is None:
            return {}
        entries = with_top(output.prompt_logprobs, self.body.prompt_logprobs)
        return {"prompt_logprobs": prompt_logprobs(self.served.tokenizer, entries)}

    def beside_choices(self, output: RequestOutput) -> dict[str, Any]:
        """What a whole answer holds beside its choices; `output` is the first of the first."""
        return {}

    async def respond(self, http: HttpRequest) -> Response:
        """The response, whole or as a stream. Errors: those of AsyncEngine.generate, ClientDisconnect."""
        with renaming(self.renamed):
            if not self.body.stream:
                return JSONResponse(await until_disconnect(http.receive, self.whole()))
            events = self._events()
            return EventStream(await until_disconnect(http.receive, anext(events)), events)

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """What the engine puts out, beside the number of its choice. Errors: as `respond`."""
        async with aclosing(self.served.engine.generate(*self.requests)) as outputs:
            async for output in outputs:
                if output.finish_reason is FinishReason.ERROR:
                    raise EngineError(output.error or "the engine failed")
                self._completion_tokens += len(output.token_ids)
                yield self._numbers[output.request_id] * self.params.n + output.index, output

    async def whole(self) -> dict[str, Any]:
        """All of the answer as one object. Errors: those of AsyncEngine.generate."""
        samples: dict[int, list[RequestOutput]] = {}
        async with aclosing(self.outputs()) as outputs:
            async for index, output in outputs:
                samples.setdefault(index, []).append(output)
        choices = [self.choice(index, samples[index]) for index in sorted(samples)]
        return self._object(self.kind, choices) | {"usage": self.usage()} | self.beside_choices(samples[0][0])

    async def _events(self) -> AsyncGenerator[str, None]:
        options = self.body.stream_options or StreamOptions()
        async with aclosing(self.outputs()) as outputs:
            async for index, output in outputs:
                for choice in self.chunks(index, output):
                    chunk = self._object(self.chunk_kind, [choice])
                    if options.continuous_usage_stats:
                        chunk["usage"] = self.usage()
                    elif options.include_usage:
                        chunk["usage"] = None
                    yield event(chunk)
        if options.include_usage:
            yield event(self._object(self.chunk_kind, []) | {"usage": self.usage()})

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "choices": choices,
        }

    def usage(self) -> dict[str, Any]:
        """Tokens: a prompt counts once however many samples it has; every sampled token counts, the ending one too."""
        prompt_tokens = sum(map(len, self.prompts))
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt_tokens + self._completion_tokens,
        }


def join(outputs: list[RequestOutput]) -> RequestOutput:
    """All outputs of one sample as one."""
    last = outputs[-1]
    return RequestOutput(
        last.request_id,
        last.index,
        token_ids=tuple(chain.from_iterable(output.token_ids for output in outputs)),
        text="".join(output.text for output in outputs),
        logprobs=_joined(output.logprobs for output in outputs),
        prompt_logprobs=outputs[0].prompt_logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
    )


def _joined(parts: Iterable[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
    given = [part for part in parts if part is not None]
    return tuple(chain.from_iterable(given)) if given else None


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Let a RequestError name the parameter that the client knows."""
    try:
        yield
    except RequestError as error:
        name = names.get(error.param, error.param)
        raise RequestError(name, str(error).replace(error.param, name)) from None

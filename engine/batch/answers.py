"""A line of the input answered: what the API answers, in the shape of a line of the output."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from engine.api.answer import Answer, renaming
from engine.api.body import MAX_BODY_BYTES, check, read_object
from engine.api.chat import ChatAnswer
from engine.api.completions import CompletionAnswer
from engine.api.errors import ApiError, as_api_error, bad_parameter
from engine.api.protocol import ChatRequest, CompletionRequest, GenerationRequest
from engine.api.served import ServedModel
from engine.api.streaming import one_line
from engine.api.strict import Strict
from engine.batch.lines import Line
from engine.loop import EngineStopped

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS: dict[str, tuple[type[GenerationRequest], Callable[[ServedModel, Any], Answer]]] = {
    CHAT: (ChatRequest, ChatAnswer.prepare),
    COMPLETIONS: (CompletionRequest, CompletionAnswer.prepare),
}
ID_PREFIX = "batch_req_"
_ID = re.compile(ID_PREFIX + "([0-9]+)_([0-9a-f]{8})_([0-9a-f]{16})")


class BatchLine(Strict):
    """A line in OpenAI's batch form."""

    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any]


@dataclass(frozen=True)
class LineId:
    """What a line of the output answers."""

    index: int  # of the input's line
    run: str  # 8 hexadecimal digits of what `run_digest` is given
    content: str  # 16 of the input's line

    @classmethod
    def of(cls, line: Line, run: str) -> LineId:
        return cls(line.index, run, hashlib.sha256(line.data).hexdigest()[:16])

    @classmethod
    def parse(cls, text: Any) -> LineId | None:
        """None for what is no such id."""
        found = _ID.fullmatch(text) if isinstance(text, str) else None
        return None if found is None else cls(int(found[1]), found[2], found[3])

    def __str__(self) -> str:
        return f"{ID_PREFIX}{self.index}_{self.run}_{self.content}"


def run_digest(options: Mapping[str, Any]) -> str:
    """Of all options that answers depend on."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]


def line_seed(seed: int, index: int) -> int:
    """The seed of a line that says none, in a run with a seed: 64 bits, other ones for every line."""
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:8], "big")


@dataclass(frozen=True)
class AnsweredLine:
    """A line of the output. Its length is that of its text."""

    data: bytes  # with the line's end
    status: int  # what HTTP would have said
    num_tokens: int  # sampled
    input_end: int  # bytes of the input up to the next line

    @property
    def failed(self) -> bool:
        return self.status != HTTPStatus.OK

    def __len__(self) -> int:
        return len(self.data)


def is_failed(record: Mapping[str, Any]) -> bool:
    """Does a line of the output tell an error?"""
    response = record.get("response")
    return not isinstance(response, dict) or response.get("status_code", HTTPStatus.OK) != HTTPStatus.OK


class LineAnswerer:
    """Answers lines with a running model."""

    def __init__(self, served: ServedModel, run: str, defaults: Mapping[str, Any], seed: int | None) -> None:
        """run: as `run_digest` gives it. defaults: parameters for lines that do not say. seed: as `line_seed` says."""
        self._served, self._run, self._defaults, self._seed = served, run, defaults, seed

    async def answer(self, line: Line) -> AnsweredLine:
        """Whatever is wrong with a line is its answer. Errors: EngineStopped."""
        line_id = str(LineId.of(line, self._run))
        try:
            raw = _object(line)
            if raw.keys().isdisjoint(BatchLine.model_fields):
                answered = await self._respond(_url(raw), raw, line.index)
                shaped = {"response": answered.body} if answered.status == HTTPStatus.OK else answered.body
                return _line(line, answered, {"id": line_id, "index": line.index, **shaped})
        except ApiError as error:
            return _line(line, _Response.of(error), {"id": line_id, "index": line.index, **error.body})

        custom_id = raw.get("custom_id")
        named = {"id": line_id, "custom_id": custom_id if isinstance(custom_id, str) else None}
        try:
            asked = check(BatchLine, raw)
        except ApiError as error:
            return _line(line, _Response.of(error), named | {"response": None, **error.body})
        answered = await self._respond(asked.url, asked.body, line.index)
        response = {"status_code": answered.status, "request_id": line_id, "body": answered.body}
        return _line(line, answered, named | {"response": response, "error": None})

    async def _respond(self, url: str, body: dict[str, Any], index: int) -> _Response:
        try:
            # In a thread, as the API does it: what runs goes on while a long body is checked and tokenized.
            answer = await asyncio.to_thread(self._prepare, url, body, index)
            with renaming(answer.renamed):
                whole = await answer.whole()
        except EngineStopped:  # no later line would be answered either
            raise
        except Exception as error:
            return _Response.of(as_api_error(error))
        return _Response(HTTPStatus.OK, whole, whole["usage"]["completion_tokens"])

    def _prepare(self, url: str, body: dict[str, Any], index: int) -> Answer:
        model, prepare = ENDPOINTS[url]
        parsed = check(model, body | self._defaults_for(body, index))
        self._served.check_name(parsed.model)
        if parsed.stream:
            raise bad_parameter("stream", "stream is true; a line is answered by a line, so it must be false")
        return prepare(self._served, parsed)

    def _defaults_for(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        """What the command line says and the body does not. To the API a null is as good as absent."""
        defaults = dict(self._defaults)
        if self._seed is not None:
            defaults["seed"] = line_seed(self._seed, index)
        if body.get("max_completion_tokens") is not None:  # the newer name
            defaults.pop("max_tokens", None)
        return {name: value for name, value in defaults.items() if body.get(name) is None}


@dataclass(frozen=True)
class _Response:
    """What HTTP would have answered."""

    status: int
    body: dict[str, Any]
    num_tokens: int = 0

    @classmethod
    def of(cls, error: ApiError) -> _Response:
        return cls(error.status, error.body)


def _object(line: Line) -> dict[str, Any]:
    """The JSON object of a line. Errors: ApiError."""
    if len(line.data) > MAX_BODY_BYTES:
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the line is larger than {MAX_BODY_BYTES} bytes")
    return read_object(line.data)


def _url(body: dict[str, Any]) -> str:
    """The endpoint that a body is for. Errors: ApiError."""
    match "messages" in body, "prompt" in body:
        case True, False:
            return CHAT
        case False, True:
            return COMPLETIONS
        case True, True:
            raise bad_parameter("prompt", "there are both messages, for a chat, and prompt, for a completion; give one")
    raise bad_parameter("prompt", "there is neither prompt, for a completion, nor messages, for a chat")


def _line(line: Line, answered: _Response, record: dict[str, Any]) -> AnsweredLine:
    return AnsweredLine(f"{one_line(record)}\n".encode(), answered.status, answered.num_tokens, line.end)

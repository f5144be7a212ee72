"""The body of a request: read under a limit, parsed as strict JSON, checked against a request model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from engine.api.errors import ApiError, bad_parameter, shortened, unsupported_parameter
from engine.api.strict import Strict

# Four times what a prompt of 128k token ids takes, twice what a bias for every token does. The JSON parser keeps the
# interpreter to itself, and other streams stand still meanwhile: an eighth of a second a MiB at the worst.
MAX_BODY_BYTES = 4 * 2**20
BODY_SECONDS = 30.0  # a client that sends no more holds nothing for longer
MAX_NAME = 64  # characters; no parameter has a longer name

Body = TypeVar("Body", bound=Strict)


async def read_body(request: Request, limit: int = MAX_BODY_BYTES, seconds: float = BODY_SECONDS) -> bytes:
    """The whole body. Errors: ApiError 413 once more than `limit` bytes are announced or have come, 408 if not all has
    come after so many seconds; ClientDisconnect."""
    too_large = ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {limit} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        message = f"the body has not come within {seconds:g} seconds"
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, message, headers={"connection": "close"}) from None
    return bytes(body)


def parse(model: type[Body], body: bytes) -> Body:
    """The request that a body holds. Errors: ApiError 400 that names the parameter."""
    return check(model, read_object(body))


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds. Errors: ApiError 400."""
    try:
        # Stricter than json.loads: no NaN, no lone surrogates that would break the tokenizer later.
        raw = from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ApiError(HTTPStatus.BAD_REQUEST, f"the body must be a JSON object, not {type(raw).__name__}")
    return raw


def check(model: type[Body], raw: Mapping[str, Any]) -> Body:
    """The request with these fields. Errors: ApiError 400 that names the parameter."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _told(model, error.errors(include_url=False)[0]) from None


def _told(model: type[Strict], detail: ErrorDetails) -> ApiError:
    """Pydantic's first finding, in the API's words."""
    param = _path(detail["loc"])
    match detail["type"]:
        case "extra_forbidden":
            name = str(detail["loc"][-1])
            # Looking for a neighbour takes long for a long name, which has none.
            is_slip = len(detail["loc"]) == 1 and len(name) <= MAX_NAME
            near = get_close_matches(name, model.model_fields, n=1) if is_slip else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return bad_parameter(param, f"unknown parameter {param!r}{hint}")
        case "unsupported" | "parameter" as kind:
            param = f"{param}.{detail['ctx']['name']}".removeprefix(".")
            refuse = unsupported_parameter if kind == "unsupported" else bad_parameter
            return refuse(param, f"{param} {detail['msg']}")
        case "missing":
            return bad_parameter(param, f"{param} is missing")
        case "value_error":
            return bad_parameter(param, f"{param}: {detail['ctx']['error']}")
        case _:
            return bad_parameter(param, f"{param}: {detail['msg'][0].lower()}{detail['msg'][1:]}")


def _path(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "content") -> "messages[0].content"."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{shortened(step)}"
    return path.removeprefix(".")

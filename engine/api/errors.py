"""Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}} and a status.

400 a parameter that is wrong or not supported, named in `param`; 401 no API key, or none that is known; 404 an unknown
model or route; 405; 408 a body that did not come; 413 a body over the limit; 429 the server is full; 500 the engine
failed under the request; 503 the server is stopping, or lost its device and starts anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from engine.api.request_id import current_request_id
from engine.loop import EngineError, EngineLost, EngineStopped
from reference.serving.request import RequestError

MAX_TOLD = 100  # characters
RESTART_SECONDS = 30  # after which a client may try again where the server starts anew

log = logging.getLogger(__name__)


class ApiError(Exception):
    """An answer that is an error. `headers`: of the response, beside those that every response has."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "requests"  # as OpenAI says which of its limits was met
        else:
            kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def bad_parameter(param: str, message: str) -> ApiError:
    """A 400 that names the parameter."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param)


def unsupported_parameter(param: str, message: str) -> ApiError:
    """A 400 for what OpenAI's API has and this server does not serve."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param, code="unsupported_parameter")


def shortened(text: str) -> str:
    """What a client wrote, short enough to be told back."""
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}..."


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return bad_parameter(error.param, str(error))
    if isinstance(error, EngineStopped):
        return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), code="stopping")
    if isinstance(error, EngineLost):
        wait = {"Retry-After": str(RESTART_SECONDS)}
        return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), code="device_lost", headers=wait)
    if isinstance(error, EngineError):
        return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), code="engine_failed")
    log.error("an unexpected error under request %s", current_request_id(), exc_info=error)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error; the server's log says more")


def error_response(_: Request, error: Exception) -> Response:
    """The response to any exception of a route."""
    told = as_api_error(error)
    return JSONResponse(told.body, told.status, told.headers)


def http_error(request: Request, error: Exception) -> Response:
    """404 and 405, as the router raises them."""
    assert isinstance(error, HTTPException)
    route = f"{request.method} {request.url.path}"
    messages = {
        HTTPStatus.NOT_FOUND: f"there is no route {route}",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{route} is not allowed; allowed: {(error.headers or {}).get('Allow', '')}",
    }
    told = ApiError(error.status_code, messages.get(HTTPStatus(error.status_code), error.detail))
    return JSONResponse(told.body, told.status, headers=error.headers)


def client_left(_: Request, __: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)


HANDLERS: dict[Any, Any] = {
    HTTPException: http_error,
    ClientDisconnect: client_left,
    **dict.fromkeys((ApiError, RequestError, EngineError, EngineStopped, Exception), error_response),
}

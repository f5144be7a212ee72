"""How many requests a server takes at once, running and waiting. What is beyond is told to come again.

A call counts as many as the choices that it asks for: prompts times samples. It counts until its response is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from engine.api.errors import ApiError, bad_parameter

MAX_REQUESTS = 4096
RETRY_AFTER = 1  # seconds


class Admission:
    """Counts what is inside. One event loop uses it."""

    def __init__(self, limit: int = MAX_REQUESTS) -> None:
        self.limit = limit
        self.admitted = 0

    @contextmanager
    def admit(self, num_choices: int) -> Iterator[None]:
        """Be counted while inside. Errors: ApiError 429 where they would be too many now, 400 where they always are."""
        if num_choices > self.limit:
            message = f"n and the prompts ask for {num_choices} choices; this server has {self.limit} at once"
            raise bad_parameter("n", message)
        if self.admitted + num_choices > self.limit:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"the server is full: {self.admitted} of {self.limit} requests are running or waiting",
                code="rate_limit_exceeded",
                headers={"retry-after": str(RETRY_AFTER)},
            )
        self.admitted += num_choices
        try:
            yield
        finally:
            self.admitted -= num_choices

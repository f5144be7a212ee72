"""Answers in the terminal: the text to stdout as it comes, everything else to stderr.

Requests are made and checked just as the HTTP API makes them, so defaults and messages are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

from engine.api.answer import Answer
from engine.api.errors import ApiError
from engine.api.served import ServedModel
from engine.usage import UsageError
from reference.serving.request import RequestError


async def print_answer(answer: Answer) -> str:
    """Print the answer as it streams, and a line's end. Returns its text. Errors: RequestError, EngineError."""
    pieces = []
    try:
        async with aclosing(answer.outputs()) as outputs:
            async for _, output in outputs:
                pieces.append(output.text)
                sys.stdout.write(output.text)
                sys.stdout.flush()
    finally:
        if pieces:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return "".join(pieces)


@contextmanager
def running(served: ServedModel) -> Iterator[None]:
    """The engine runs inside. Errors: UsageError for a request that cannot be served."""
    served.engine.start()
    try:
        yield
    except (ApiError, RequestError) as error:
        raise UsageError(str(error)) from error
    finally:
        served.engine.stop(limit=0.0)

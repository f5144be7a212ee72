"""Answers in the terminal: what is said to stdout as it comes, everything else to stderr; a thought there is dim.

Requests are made and checked just as the HTTP API makes them, so defaults and messages are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

from rich.console import Console

from engine.api.answer import Answer
from engine.api.errors import ApiError
from engine.api.pieces import Content, Piece, Reasoning
from engine.api.served import ServedModel
from engine.usage import UsageError
from reference.serving.request import RequestError


async def print_answer(answer: Answer) -> list[Piece]:
    """Print the answer as it streams, and a line's end. Returns its pieces. Errors: RequestError, EngineError."""
    thoughts = Console(stderr=True)
    pieces: list[Piece] = []
    has_begun = False
    try:
        async with aclosing(answer.outputs()) as outputs:
            async for index, output in outputs:
                has_begun = True
                for piece in answer.pieces(index, output):
                    if isinstance(piece, Reasoning):
                        thoughts.out(piece.text, style="dim", end="", highlight=False)
                    elif isinstance(piece, Content):
                        if pieces and isinstance(pieces[-1], Reasoning):
                            thoughts.out("\n")
                        sys.stdout.write(piece.text)
                        sys.stdout.flush()
                    pieces.append(piece)
    finally:
        if has_begun:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return pieces


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

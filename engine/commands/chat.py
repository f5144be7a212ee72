"""`diptych chat`: a conversation in the terminal, or from a pipe with a line a turn."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from engine.api.body import check
from engine.api.chat import ChatAnswer
from engine.api.errors import ApiError
from engine.api.message import message_of
from engine.api.protocol import ChatRequest
from engine.commands.load import add_model_options, load_model
from engine.commands.terminal import print_answer, running
from engine.loop import EngineError
from engine.usage import UsageError
from reference.serving.request import RequestError


def main(arguments: Sequence[str]) -> int:
    """Converse until the input ends. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True, highlight=False)
    served = load_model(options, console).served()
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    settings: dict[str, Any] = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    if options.thinking is not None:
        settings["chat_template_kwargs"] = {"enable_thinking": options.thinking}
    opening = [] if options.system is None else [{"role": "system", "content": options.system}]
    history = list(opening)
    if interactive:
        console.print(
            f"{served.name}: /reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
        )
    with running(served), asyncio.Runner() as runner:
        for line in _lines(interactive):
            if line == "/exit":
                break
            if line == "/reset":
                history = list(opening)
                continue
            turns = [*history, {"role": "user", "content": line}]
            try:
                answer = ChatAnswer.prepare(served, check(ChatRequest, {"messages": turns, **settings}))
                said = runner.run(print_answer(answer))
            except (ApiError, RequestError, EngineError, KeyboardInterrupt) as error:
                if not interactive:
                    raise
                console.print(f"not answered: {str(error) or 'stopped'}", style="red", markup=False)
                continue  # the turn is forgotten
            history = [*turns, message_of(said)]
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych chat", description="Talk to a model; from a pipe, a line is a turn.")
    add_model_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: the model's own)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of one answer (default: to the context's end)")
    parser.add_argument("--thinking", action=argparse.BooleanOptionalAction, help="let the model think first, or not")
    return parser


def _lines(interactive: bool) -> Iterator[str]:
    """What is typed, or piped in, without empty lines."""
    if interactive:
        import readline  # noqa: F401  (line editing for input)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin is not UTF-8: {error}") from error
        if line:
            yield line

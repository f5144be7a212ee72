"""`diptych generate`: one prompt continued, or with --chat answered."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from engine.api.answer import Answer
from engine.api.body import check
from engine.api.chat import ChatAnswer
from engine.api.completions import CompletionAnswer
from engine.api.protocol import ChatRequest, CompletionRequest
from engine.api.served import ServedModel
from engine.commands.load import add_model_options, load_model
from engine.commands.terminal import print_answer, running
from engine.usage import UsageError


def main(arguments: Sequence[str]) -> int:
    """Print what the model makes of one prompt. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    prompt = _from_stdin() if options.prompt is None else options.prompt
    served = load_model(options, Console(stderr=True)).served()
    with running(served):
        asyncio.run(print_answer(_answer(served, prompt, options)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych generate", description="Continue one prompt, from --prompt or stdin.")
    add_model_options(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="default: all of stdin, without a last line end")
    parser.add_argument("--chat", action="store_true", help="the prompt is a question: put it in the chat template")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="(default %(default)s)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: the model's own)")
    parser.add_argument("--seed", type=int, help="the same seed draws the same tokens (default: random)")
    return parser


def _from_stdin() -> str:
    if sys.stdin.isatty():
        raise UsageError("there is no prompt: give --prompt TEXT, or pipe a text in")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8: {error}") from error


def _answer(served: ServedModel, prompt: str, options: argparse.Namespace) -> Answer:
    sampling: dict[str, Any] = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
    }
    if options.chat:
        messages = [{"role": "user", "content": prompt}]
        return ChatAnswer.prepare(served, check(ChatRequest, {"messages": messages, **sampling}))
    return CompletionAnswer.prepare(served, check(CompletionRequest, {"prompt": prompt, **sampling}))

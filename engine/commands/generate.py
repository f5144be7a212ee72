"""`diptych generate`: one prompt continued, or with --chat answered; with --input, a file of requests answered."""

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
from engine.commands.generate_file import answer_file
from engine.commands.load import add_model_options, load_model
from engine.commands.terminal import print_answer, running
from engine.usage import UsageError

MAX_TOKENS = 128
OF_A_PROMPT = ("prompt", "chat")
OF_A_FILE = ("output", "overwrite", "concurrency", "served_model_name")
FILE_HELP = """\
a line of --input is a body of /v1/completions or /v1/chat/completions, or OpenAI's batch form of either:
  {"prompt": "Once upon a time", "max_tokens": 20}
  {"messages": [{"role": "user", "content": "Hello!"}]}
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
and is answered by a line of --output, with what the HTTP API answers (N counts lines from 0):
  {"id": ..., "index": N, "response": {...}}, or with "error" in place of "response"
  {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}
A line that cannot be answered gets its error, the others go on, and the exit code is 1. Blank lines are passed over.
--max-tokens, --temperature and --seed are for lines that do not say; with --seed a line has a seed of its own, made of
that and of N. After an interruption the same command goes on where it ended: answers that are in --output are kept if
they are those of the same lines and options, else it is refused."""


def main(arguments: Sequence[str]) -> int:
    """Print what the model makes of one prompt, or answer a file. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    if options.input is not None:
        _refuse(options, OF_A_PROMPT, "does not go with --input")
        return answer_file(options)
    _refuse(options, OF_A_FILE, "needs --input")
    prompt = _from_stdin() if options.prompt is None else options.prompt
    served = load_model(options, Console(stderr=True)).served()
    with running(served):
        asyncio.run(print_answer(_answer(served, prompt, options)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "diptych generate",
        description="Continue one prompt, from --prompt or stdin; or answer the requests of a file, --input.",
        epilog=FILE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="default: all of stdin, without a last line end")
    parser.add_argument("--chat", action="store_true", help="the prompt is a question: put it in the chat template")
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"(default: {MAX_TOKENS} for a prompt; for a line of a file what the HTTP API takes)",
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: the model's own)")
    parser.add_argument("--seed", type=int, help="the same seed draws the same tokens (default: random)")
    file = parser.add_argument_group("a file of requests")
    file.add_argument("--input", metavar="FILE", help="JSONL, a request a line; - is stdin")
    file.add_argument("--output", metavar="FILE", help="JSONL, an answer a line, in the same order (default -, stdout)")
    file.add_argument("--overwrite", action="store_true", help="start over, whatever --output holds")
    file.add_argument(
        "--concurrency", type=int, metavar="N", help="lines at work at once (default: twice --max-num-seqs)"
    )
    file.add_argument("--served-model-name", metavar="NAME", help="what lines call the model (default MODEL)")
    return parser


def _refuse(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False:
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _from_stdin() -> str:
    if sys.stdin.isatty():
        raise UsageError("there is no prompt: give --prompt TEXT, or pipe a text in")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8: {error}") from error


def _answer(served: ServedModel, prompt: str, options: argparse.Namespace) -> Answer:
    sampling: dict[str, Any] = {
        "max_tokens": MAX_TOKENS if options.max_tokens is None else options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
    }
    if options.chat:
        messages = [{"role": "user", "content": prompt}]
        return ChatAnswer.prepare(served, check(ChatRequest, {"messages": messages, **sampling}))
    return CompletionAnswer.prepare(served, check(CompletionRequest, {"prompt": prompt, **sampling}))

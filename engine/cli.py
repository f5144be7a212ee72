"""The `diptych` command: a table of commands, each imported when it is used.

Exit codes: 0 done; 1 a failure that is ours, or nobody reads the answer; 2 an error of the user, told in one line;
130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from engine.names import load_function
from engine.usage import UsageError
from engine.version import VERSION

COMMANDS = {
    "serve": ("engine.commands.serve:main", "serve a model over an OpenAI-compatible HTTP API"),
    "chat": ("engine.commands.chat:main", "talk to a model in the terminal"),
    "generate": ("engine.commands.generate:main", "continue one prompt, or answer a file of requests"),
    "parity": ("parity.commands.parity:main", "hold the optimized panel to the reference, with a GPU or without"),
    "show": ("parity.commands.show:main", "read a kernel's two panels side by side, and what it compiles to"),
    "simulate": ("parity.commands.simulate:main", "run a kernel of a PTX text on a GPU that is simulated"),
    "compile": ("engine.commands.compile:main", "build a model's kernels ahead of time, without a GPU"),
    "tune": ("parity.commands.tune:main", "measure which library is fastest for a model here, and keep it"),
    "bench": ("parity.bench.command:main", "measure throughput and overhead, beside a peer"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    if name in ("-V", "--version"):
        print(f"diptych {VERSION}")
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(COMMANDS)}"
        return _tell(f"unknown command {name!r}; {hint}")
    return _run(COMMANDS[name][0], arguments[1:])


def _run(function: str, arguments: Sequence[str]) -> int:
    try:
        code: int = load_function(function)(arguments)
        return code
    except UsageError as error:
        if "--debug" in arguments:
            raise
        return _tell(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the answer has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the flush at exit fail
        return 1


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "diptych serves Qwen3 models, and shows the text that defines the right answer.\n\n"
        f"usage: diptych COMMAND [OPTION ...]\n\n{commands}\n\n"
        "diptych COMMAND --help says more; diptych --version says which this is."
    )


def _tell(message: str) -> int:
    """One line to stderr; the exit code of an error of the user."""
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble(("diptych: ", "bold red"), " ".join(message.split()))
    Console(stderr=True).print(line, soft_wrap=True)
    return 2

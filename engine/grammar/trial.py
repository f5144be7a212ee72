"""Compiling a grammar in a process of its own first, which may use so much time and memory and no more.

The library bounds what most grammars cost, but not all: `multipleOf: 99999999` would take gigabytes, and so would
references that double twenty times. What fails here harms nobody, and what does not compiles in the server as well.
The grammar is compiled for a vocabulary of single bytes and the special tokens: what it costs beside that depends on
the vocabulary, and is bounded by the library.
"""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

log = logging.getLogger(__name__)

CPU_SECONDS = 2
MEMORY_BYTES = 2**30
WALL_SECONDS = 30.0  # where the machine is too busy to give it its time

# For an answer that grows: a string whose length is counted takes 15 states a token, of 100 bytes each, and the items
# bound what a token of an ambiguous grammar takes to a few hundredths of a second.
LIMITS = LLParserLimits(max_lexer_states=500_000, step_max_items=5_000, verbose_errors=False)


def try_to_compile(source: str, special_tokens: Mapping[str, int], *, is_gbnf: bool = False) -> str:
    """The source in the library's own form; is_gbnf: it may be GBNF instead, which is translated.

    Errors: ValueError with the library's reason, or that it takes too much.
    """
    question = json.dumps({"source": source, "special_tokens": dict(special_tokens), "is_gbnf": is_gbnf})
    # By path and without its folder in the module path: it needs nothing of ours, and modules here have plain names.
    command = [sys.executable, "-P", __file__]
    too_much = f"compiling it takes more than {CPU_SECONDS} seconds or {MEMORY_BYTES >> 20} MiB; make it simpler"
    try:
        done = subprocess.run(command, input=question.encode(), capture_output=True, timeout=WALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(too_much) from None
    if done.returncode != 0:
        log.warning(
            "a grammar was refused: its trial ended with %d: %s",
            done.returncode,
            done.stderr[-500:].decode(errors="replace"),
        )
        raise ValueError(too_much)
    answer = json.loads(done.stdout)
    if answer["error"]:
        raise ValueError(answer["error"])
    return answer["source"]


def compiled(vocabulary: LLTokenizer, source: str) -> LLMatcher:
    """The state of a grammar at its beginning; `reason` tells whether it is one."""
    return LLMatcher(vocabulary, source, log_level=0, limits=LIMITS)


def reason(matcher: LLMatcher) -> str:
    """Why a grammar did not compile, or compiles without a part of it; empty if it is all right."""
    error = matcher.get_error() or "\n".join(matcher.get_grammar_warnings())
    if error.startswith("panic"):
        return "the grammar library does not know what to do with it"
    return error.removesuffix("<non-verbose/>").strip()[:500]


class _Bytes:
    """A vocabulary of single bytes and the special tokens, at their ids."""

    bos_token_id = None

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        at = {token_id: text.encode() for text, token_id in special_tokens.items()}
        free = (token_id for token_id in range(256 + len(at)) if token_id not in at)
        of_byte = dict(zip(range(256), free, strict=False))
        at |= {token_id: bytes([byte]) for byte, token_id in of_byte.items()}
        self.eos_token_id = max(at) + 1
        self.tokens = [*(at.get(token_id, b"") for token_id in range(self.eos_token_id)), b"<the end>"]
        self.special_token_ids = [*special_tokens.values(), self.eos_token_id]
        self._of_byte = of_byte

    def __call__(self, text: str) -> list[int]:
        return [self._of_byte[byte] for byte in text.encode()]


def main() -> None:
    """Read a question, compile, print the source and the reason why it does not."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    question = json.load(sys.stdin)
    vocabulary = LLTokenizer(TokenizerWrapper(_Bytes(question["special_tokens"])))
    source, error = question["source"], ""
    try:
        source = grammar_from("grammar", source) if question["is_gbnf"] else source
    except ValueError as told:
        error = str(told)
    print(json.dumps({"source": source, "error": error or reason(compiled(vocabulary, source))}))


if __name__ == "__main__":
    main()

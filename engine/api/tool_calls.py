"""Calls of tools parted from the content around them, piece by piece, in the format that Qwen3 is trained on:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

The arguments are passed on as they come, just as the model writes them. A call that is written in another order, or
with its arguments in a string, is passed on whole when it has ended; one that is no call (no JSON, no name) is content,
to the letter. White space around calls is dropped. Whether the name is one of the tools is for the client to see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.api.thought import unfinished

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_HEADER = 512  # characters: a call whose arguments have not begun by then is read when it has ended
_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\<]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


@dataclass(frozen=True)
class Content:
    text: str


@dataclass(frozen=True)
class CallBegins:
    """The next call, counted from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Content | CallBegins | CallArguments


class ToolCallSplit:
    """One sample's content. What goes out, joined, does not depend on where the pieces were cut."""

    def __init__(self, *, parallel: bool = True) -> None:
        """parallel: if not, what comes after the first call is dropped."""
        self.num_calls = 0
        self._parallel = parallel
        self._held = ""
        self._place = self._content
        self._scanned = 0  # of `_held`, inside arguments
        self._depth, self._in_string, self._escaped = 0, False, False

    def push(self, text: str) -> list[Piece]:
        """What a piece adds."""
        self._held += text
        return self._joined(self._run(False))

    def finish(self) -> list[Piece]:
        """What was held back, when the text has ended. A call that was cut short has the arguments it has."""
        return self._joined(self._run(True))

    @staticmethod
    def _joined(pieces: Iterator[Piece]) -> list[Piece]:
        return [piece for piece in pieces if not isinstance(piece, Content | CallArguments) or piece.text]

    def _run(self, is_end: bool) -> Iterator[Piece]:
        while True:
            place = self._place
            yield from place(is_end)
            if self._place == place:
                return

    def _content(self, is_end: bool) -> Iterator[Piece]:
        if self.num_calls and not self._parallel:
            self._held = ""
            return
        before, tag, rest = self._held.partition(BEGIN)
        if tag:
            yield Content(before.rstrip() if before.strip() or not self.num_calls else "")
            self._held, self._place = rest, self._header
        elif is_end:
            yield Content(before if before.strip() or not self.num_calls else "")
            self._held = ""
        else:
            # White space may turn out to stand before a call.
            known = before[: len(before) - unfinished(before, BEGIN)].rstrip()
            yield Content(known)
            self._held = before[len(known) :]

    def _header(self, is_end: bool) -> Iterator[Piece]:
        found = _HEADER.match(self._held[:MAX_HEADER])
        if found and (name := _string(found["name"])):
            yield CallBegins(self.num_calls, name)
            self.num_calls += 1
            self._held, self._place = self._held[found.end() :], self._arguments
            self._scanned, self._depth, self._in_string, self._escaped = 0, 0, False, False
            return
        block, tag, rest = self._held.partition(END)
        if tag:
            self._held, self._place = rest, self._content
            yield from self._whole(block)
        elif is_end:
            self._held, self._place = "", self._content
            yield Content(BEGIN + block)

    def _whole(self, block: str) -> Iterator[Piece]:
        """A call whose arguments could not be passed on as they came."""
        try:
            call: Any = json.loads(block)
        except (ValueError, RecursionError):
            call = None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
            yield Content(BEGIN + block + END)
            return
        arguments = call.get("arguments", {})
        yield CallBegins(self.num_calls, call["name"])
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield CallArguments(self.num_calls, text)
        self.num_calls += 1

    def _arguments(self, is_end: bool) -> Iterator[Piece]:
        end = self._end_of_object()
        text = self._held if end is None else self._held[:end]
        yield CallArguments(self.num_calls - 1, text)
        self._held, self._scanned = self._held[len(text) :], 0
        if end is not None:
            self._place = self._tail

    def _end_of_object(self) -> int | None:
        """Where the arguments' object ends in what is held, if it does."""
        for at in range(self._scanned, len(self._held)):
            character = self._held[at]
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return at + 1
        return None

    def _tail(self, is_end: bool) -> Iterator[Piece]:
        """What stands between the arguments and the end of the call: a brace, as a rule."""
        _, tag, rest = self._held.partition(END)
        if tag:
            self._held, self._place = rest, self._content
        elif is_end:
            self._held = ""
        yield from ()


def _string(literal: str) -> str | None:
    try:
        value: str = json.loads(literal)
    except ValueError:
        return None
    return value

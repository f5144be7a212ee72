"""Calls of tools, told from the content around them as the text comes. Qwen's format:

    content <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Arguments are given as they come, as the model writes them. A block that begins otherwise (other keys first, arguments
in a string) is given once it is complete, if it is JSON with a name; if not, it is content, verbatim. White space
before a call belongs to neither, nor does what stands after the last one. Whether a tool of that name was offered is
not asked: the client decides. Source: the chat templates of Qwen3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum

from pydantic_core import from_json

from engine.api.pieces import CallArguments, CallBegun, Content, Piece, beginning_of

BEGIN, END = "<tool_call>", "</tool_call>"
_WHITE = " \t\r\n"
# All of a block up to the brace that opens the arguments.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)+")\s*,\s*"arguments"\s*:\s*\{')


class _Stage(Enum):
    CONTENT = "outside of calls"
    OPENED = "after the tag of a block, before its object"
    HEAD = "in that object, before the arguments"
    ARGUMENTS = "in the arguments"
    TAIL = "after the arguments, in the object around them"
    CLOSING = "after that object, before the end of the block"


class ToolCallSplit:
    """Takes one answer's content apart. However its text is cut, the pieces joined are the same."""

    def __init__(self, *, must_call: bool = False) -> None:
        """must_call: the answer is nothing but calls, so the beginning of one is not content."""
        self._must_call = must_call
        self.num_calls = 0
        self.num_ended = 0
        self._stage = _Stage.CONTENT
        self._held = ""  # what may still be the beginning of a tag, or white space before one
        self._nothing_since_call = False  # but white space
        self._block = ""  # as written, from the white space before its tag, while it may still be content
        self._json = _JsonScanner()
        self._unread: set[tuple[str, int]] = set()  # braces, and depths after them, at which a head may be read

    def push(self, text: str) -> Iterator[Piece]:
        """The pieces that are certain once this text has come too."""
        self._held += text
        before = None
        while self._held and before != (before := (self._stage, len(self._held))):
            match self._stage:
                case _Stage.CONTENT:
                    yield from self._read_content()
                case _Stage.OPENED:
                    yield from self._read_opened()
                case _Stage.CLOSING:
                    self._read_closing()
                case _:
                    yield from self._read_block()

    @property
    def in_arguments(self) -> bool:
        """Are the arguments of a call not complete?"""
        return self._stage is _Stage.ARGUMENTS

    def finish(self) -> Iterator[Piece]:
        """What was held back, once the answer has ended. A call that is cut short has the arguments that came."""
        held, self._held = self._held, ""
        match self._stage:
            case _Stage.CONTENT if not self._nothing_since_call or held.strip(_WHITE):
                yield from self._content(held)
            case _Stage.OPENED | _Stage.HEAD if not self._must_call:
                yield from self._content(self._block + held)
            case _Stage.ARGUMENTS:
                yield from self._arguments(held)

    def _read_content(self) -> Iterator[Piece]:
        at = self._held.find(BEGIN)
        end = len(self._held) - beginning_of(BEGIN, self._held) if at < 0 else at
        content = self._held[:end].rstrip(_WHITE)
        yield from self._content(content)
        self._held = self._held[len(content) :]
        if at >= 0:
            opened = at - len(content) + len(BEGIN)
            self._block, self._held = self._held[:opened], self._held[opened:]
            self._stage = _Stage.OPENED

    def _read_opened(self) -> Iterator[Piece]:
        body = self._held.lstrip(_WHITE)
        if body.startswith("{"):
            self._json, self._unread = _JsonScanner(), {("{", 2), ("}", 0)}
            self._stage = _Stage.HEAD
        elif body:
            yield from self._content(self._block)  # the tag alone is no call
            self._stage = _Stage.CONTENT

    def _read_block(self) -> Iterator[Piece]:
        """Up to the end of the stage, or as far as it is certain that no tag has begun."""
        held, scanner = self._held, self._json
        for at, character in enumerate(held):
            if character == "<" and scanner.may_end:
                tag = held[at : at + len(END)]
                if tag == END:
                    yield from self._pass_on(held[:at], held[at + len(END) :])
                    yield from self._end_of_block()
                    return
                if END.startswith(tag):
                    yield from self._pass_on(held[:at], held[at:])
                    return
            scanner.read(character)
            if character in "{}" and not scanner.in_string and self._turns_at(character):
                yield from self._pass_on(held[: at + 1], held[at + 1 :])
                yield from self._turn()
                return
        yield from self._pass_on(held, "")

    def _turns_at(self, brace: str) -> bool:
        """May the stage end with this brace?"""
        at = (brace, self._json.depth)
        match self._stage:
            case _Stage.HEAD if at in self._unread:
                self._unread.remove(at)
                return True
            case _Stage.ARGUMENTS:
                return at == ("}", 1)
            case _Stage.TAIL:
                return at == ("}", 0)
        return False

    def _turn(self) -> Iterator[Piece]:
        match self._stage:
            case _Stage.HEAD if self._json.depth == 2:
                found = _HEAD.fullmatch(self._body())
                if found and (name := _string(found["name"])):
                    yield from self._call(name, "{")
                    self._stage = _Stage.ARGUMENTS
            case _Stage.HEAD:
                if call := _whole(self._body()):
                    yield from self._call(*call)
                    self._stage = _Stage.CLOSING
            case _Stage.ARGUMENTS:
                self._stage = _Stage.TAIL
            case _:
                self._stage = _Stage.CLOSING

    def _body(self) -> str:
        return self._block.lstrip(_WHITE).removeprefix(BEGIN)

    def _pass_on(self, read: str, rest: str) -> Iterator[Piece]:
        self._held = rest
        if self._stage is _Stage.HEAD:
            self._block += read
        elif self._stage is _Stage.ARGUMENTS:
            yield from self._arguments(read)

    def _end_of_block(self) -> Iterator[Piece]:
        if self._stage is _Stage.HEAD:
            yield from self._content(self._block + END)
            self._stage = _Stage.CONTENT
        else:
            self._end_of_call()

    def _read_closing(self) -> None:
        rest = self._held.lstrip(_WHITE)
        if rest.startswith(END):
            self._held = rest[len(END) :]
            self._end_of_call()
        elif not END.startswith(rest):
            self._end_of_call()  # without its tag

    def _end_of_call(self) -> None:
        self.num_ended += 1
        self._nothing_since_call = True
        self._stage = _Stage.CONTENT

    def _call(self, name: str, arguments: str) -> Iterator[Piece]:
        yield CallBegun(self.num_calls, name)
        self.num_calls += 1
        yield from self._arguments(arguments)

    def _arguments(self, text: str) -> Iterator[Piece]:
        if text:
            yield CallArguments(self.num_calls - 1, text)

    def _content(self, text: str) -> Iterator[Piece]:
        if text:
            self._nothing_since_call = False
            yield Content(text)


class _JsonScanner:
    """Where in a JSON text one stands, however broken it is."""

    def __init__(self) -> None:
        self.depth = 0  # of braces
        self.in_string = False
        self._is_escaped = False
        self._begins_line = False

    @property
    def may_end(self) -> bool:
        """May the tag that ends the block stand here? No string has a line end in it, so what looks like one that has
        is broken."""
        return not self.in_string or self._begins_line

    def read(self, character: str) -> None:
        self._begins_line = character == "\n"
        if self._is_escaped:
            self._is_escaped = False
        elif character == '"':
            self.in_string = not self.in_string
        elif self.in_string:
            self._is_escaped = character == "\\"
        else:
            self.depth += (character == "{") - (character == "}")


def _whole(body: str) -> tuple[str, str] | None:
    """The name and the arguments of a call; None for what is no call."""
    try:
        call = from_json(body, allow_inf_nan=False)
        name, arguments = call["name"], call.get("arguments")
        if not isinstance(name, str) or not name or not isinstance(arguments, str | dict | None):
            return None
        return name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _string(literal: str) -> str | None:
    try:
        value: str = from_json(literal)
    except ValueError:
        return None
    return value

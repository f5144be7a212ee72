"""The thought of an answer, told from its content as the text comes.

    <think>\\n thought \\n</think>\\n\\n content        or        content

The tags, the line ends inside of them and those between the thought and the content belong to neither. An answer that
ends before `</think>` is all thought. One that does not begin with `<think>` is all content, and so is a `<think>`
further on. Source: the chat templates of Qwen3, which take an assistant's turn apart in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from engine.api.pieces import Content, Mark, Piece, Reasoning, beginning_of

THINK, END_OF_THINKING = "<think>", "</think>"


class Opening(Enum):
    """What the prompt says of the answer's beginning."""

    THOUGHT = "the prompt has begun a thought"
    EITHER = "a thought, if the answer begins with its tag"
    CONTENT = "no thought"


class _Stage(Enum):
    FIRST = "at the tag of a thought, if there is one"
    BEFORE = "in the line ends before the thought"
    THOUGHT = "in the thought"
    AFTER = "in the line ends after it"
    CONTENT = "in the content"


_STAGE_AT = {Opening.THOUGHT: _Stage.BEFORE, Opening.EITHER: _Stage.FIRST, Opening.CONTENT: _Stage.CONTENT}


class ThoughtSplit:
    """Takes one answer apart. However its text is cut, the pieces joined are the same, and their texts the answer's."""

    def __init__(self, opening: Opening) -> None:
        self._stage = _STAGE_AT[opening]
        self._held = ""  # what may still be the beginning of something else
        self.has_thought = opening is Opening.THOUGHT

    @property
    def in_content(self) -> bool:
        """Is the thought over, or is there none?"""
        return self._stage in (_Stage.AFTER, _Stage.CONTENT)

    def push(self, text: str) -> Iterator[Piece]:
        """The pieces that are certain once this text has come too."""
        self._held += text
        while self._held:
            stage = self._stage
            yield from self._read()
            if self._stage is stage:
                return

    def finish(self) -> Iterator[Piece]:
        """What was held back, once the answer has ended."""
        held, self._held = self._held, ""
        if held:
            yield Reasoning(held) if self._stage is _Stage.THOUGHT else Content(held)

    def _read(self) -> Iterator[Piece]:
        """Go as far as the stage goes."""
        match self._stage:
            case _Stage.FIRST:
                if self._held.startswith(THINK):
                    self.has_thought = True
                    self._stage = _Stage.BEFORE
                    yield Mark(self._take(len(THINK)))
                elif not THINK.startswith(self._held):
                    self._stage = _Stage.CONTENT
            case _Stage.BEFORE | _Stage.AFTER:
                if line_ends := len(self._held) - len(self._held.lstrip("\n")):
                    yield Mark(self._take(line_ends))
                if self._held:
                    self._stage = _Stage.THOUGHT if self._stage is _Stage.BEFORE else _Stage.CONTENT
            case _Stage.THOUGHT:
                at = self._held.find(END_OF_THINKING)
                known = len(self._held) - beginning_of(END_OF_THINKING, self._held) if at < 0 else at
                if length := len(self._held[:known].rstrip("\n")):
                    yield Reasoning(self._take(length))
                if at >= 0:
                    self._stage = _Stage.AFTER
                    yield Mark(self._take(at - length + len(END_OF_THINKING)))
            case _Stage.CONTENT:
                yield Content(self._take(len(self._held)))

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken

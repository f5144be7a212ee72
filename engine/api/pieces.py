"""What the text of an answer is taken apart into, in the order in which it came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class _Text:
    text: str


class Reasoning(_Text):
    """Of the thought."""


class Mark(_Text):
    """Of what divides the thought from the content, and belongs to neither."""


class Content(_Text):
    """Of what is said."""


@dataclass(frozen=True)
class CallBegun:
    """A call of a tool begins. `index` numbers an answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """Of the arguments of a call, a JSON object as the model writes it."""

    index: int
    text: str


Piece = Reasoning | Mark | Content | CallBegun | CallArguments


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces, neighbours of one kind as one."""
    last: Piece | None = None
    for piece in pieces:
        together = None if last is None else _together(last, piece)
        if together is None and last is not None:
            yield last
        last = together or piece
    if last is not None:
        yield last


def _together(one: Piece, other: Piece) -> Piece | None:
    if isinstance(one, CallBegun) or isinstance(other, CallBegun) or type(one) is not type(other):
        return None
    if isinstance(one, CallArguments) and isinstance(other, CallArguments) and one.index != other.index:
        return None
    return replace(one, text=one.text + other.text)


def beginning_of(tag: str, text: str) -> int:
    """The length of the longest ending of `text` that begins `tag` and may become it."""
    longest = min(len(tag) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if tag.startswith(text[-length:])), 0)

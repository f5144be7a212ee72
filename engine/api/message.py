"""A chat's message from one sample's text, as it comes: thought, content, calls of tools."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from engine.api.pieces import CallArguments, CallBegun, Content, Mark, Piece, Reasoning, joined
from engine.api.thought import Opening, ThoughtSplit
from engine.api.tool_calls import ToolCallSplit
from reference.serving.request import FinishReason


class MessageParts:
    """One sample's message. A stream sends its pieces; the whole message is all of them joined."""

    def __init__(
        self,
        opening: Opening,
        *,
        separate_reasoning: bool = True,
        with_calls: bool = False,
        must_call: bool = False,
    ) -> None:
        """separate_reasoning: if not, a thought is content, tags and all. with_calls: the content may hold calls; a
        thought never does. must_call: there is no other content."""
        self._thought = ThoughtSplit(opening)
        self._calls = ToolCallSplit(must_call=must_call)
        self._separate_reasoning, self._with_calls = separate_reasoning, with_calls
        self._tokens_before_content = 0
        self._pieces: list[Piece] = []

    @property
    def reasoning_tokens(self) -> int:
        """The tokens of the thought, up to and with the one that ends it. A token whose text is held back (a part of a
        character, or perhaps of a stop string) counts where that text comes."""
        return self._tokens_before_content if self._thought.has_thought else 0

    @property
    def num_ended_calls(self) -> int:
        return self._calls.num_ended

    def push(self, text: str, num_tokens: int, *, is_end: bool = False) -> list[Piece]:
        """What a text, and the tokens that it comes with, adds."""
        if not self._thought.in_content:
            self._tokens_before_content += num_tokens
        pieces = list(joined(self._told(text, is_end)))
        self._pieces += pieces
        if is_end and not self._says_anything():
            self._pieces.append(Content(""))
            pieces.append(Content(""))
        return pieces

    def message(self) -> dict[str, Any]:
        """The whole message."""
        return message_of(self._pieces)

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        """OpenAI's word for how a message ended. Not `tool_calls` where a stop string cut the last of them short: a
        client makes them."""
        made = self._calls.num_calls and not self._calls.in_arguments
        return "tool_calls" if made and reason is FinishReason.STOP else reason

    def _told(self, text: str, is_end: bool) -> Iterator[Piece]:
        yield from self._after_thought(self._thought.push(text))
        if is_end:
            yield from self._after_thought(self._thought.finish())
            yield from self._calls.finish()

    def _after_thought(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            match piece:
                case Content(text) if self._with_calls:
                    yield from self._calls.push(text)
                case Reasoning(text) | Mark(text) if not self._separate_reasoning:
                    yield Content(text)
                case Mark():
                    pass
                case _:
                    yield piece

    def _says_anything(self) -> bool:
        thought = self._thought.has_thought and self._separate_reasoning
        return thought or bool(self._pieces)


def delta_of(piece: Piece) -> dict[str, Any]:
    """A piece as a stream sends it."""
    match piece:
        case CallBegun(index, name):
            function = {"name": name, "arguments": ""}
            call_id = f"call_{uuid.uuid4().hex[:24]}"
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case Reasoning(text):
            return {"reasoning_content": text}
        case _:
            return {"content": piece.text}


def message_of(pieces: Iterable[Piece]) -> dict[str, Any]:
    """A message of these pieces, in OpenAI's shape. Content is null where there is none."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    for piece in joined(pieces):
        for field, value in delta_of(piece).items():
            if field != "tool_calls":
                message[field] = (message.get(field) or "") + value
            elif isinstance(piece, CallBegun):
                (call,) = value
                message.setdefault(field, []).append({key: call[key] for key in call if key != "index"})
            else:
                message[field][-1]["function"]["arguments"] += value[0]["function"]["arguments"]
    return message

"""What a chat's answer is made of: thought, content, calls of tools; from one sample's text, as it comes."""

from __future__ import annotations

import uuid
from typing import Any

from engine.api.thought import ThoughtSplit
from engine.api.tool_calls import CallArguments, CallBegins, Content, Piece, ToolCallSplit
from reference.serving.request import FinishReason

Delta = dict[str, Any]


class MessageParts:
    """One sample's message. A stream sends the deltas; the whole message is all of them joined."""

    def __init__(self, reasoning: ThoughtSplit | None, calls: ToolCallSplit | None) -> None:
        """None: the text is not searched for these."""
        self._reasoning, self._calls = reasoning, calls
        self._thought: list[str] = []
        self._content: list[str] = []
        self._made: list[dict[str, Any]] = []  # calls, in OpenAI's shape

    def push(self, text: str, *, is_end: bool) -> list[Delta]:
        """What a piece of text adds to a stream."""
        thought, content = ("", text) if self._reasoning is None else self._reasoning.push(text)
        if is_end and self._reasoning is not None:
            rest = self._reasoning.finish()
            thought, content = thought + rest[0], content + rest[1]
        deltas: list[Delta] = []
        if thought:
            self._thought.append(thought)
            deltas.append({"reasoning_content": thought})
        pieces: list[Piece] = [Content(content)] if content else []
        if self._calls is not None:
            pieces = self._calls.push(content) + (self._calls.finish() if is_end else [])
        return deltas + [self._delta(piece) for piece in pieces]

    def _delta(self, piece: Piece) -> Delta:
        match piece:
            case Content(text):
                self._content.append(text)
                return {"content": text}
            case CallBegins(index, name):
                function = {"name": name, "arguments": ""}
                call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
                self._made.append(call)
                return {"tool_calls": [{"index": index, **call, "function": dict(function)}]}
            case CallArguments(index, text):
                self._made[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def message(self) -> dict[str, Any]:
        """The whole message. Content is null where a thought or calls are all there is."""
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._made:
            message["tool_calls"] = self._made
        if not content and (self._thought or self._made):
            message["content"] = None
        return message

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        """OpenAI's word for how a message ended."""
        return "tool_calls" if self._made and reason is FinishReason.STOP else reason

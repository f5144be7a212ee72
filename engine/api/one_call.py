"""`parallel_tool_calls` false: with the end of its first call an answer ends.

As a Constraint, so that nothing is sampled in vain and the answer ends as one does that the model ends. It follows the
text by the parser that finds the calls in the answer, so the two cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.api.message import MessageParts
from engine.api.served import ServedModel
from engine.api.thought import Opening
from engine.detokenize import IncrementalDetokenizer
from engine.grammar.grammar import has_bit
from reference.serving.request import RequestError


@dataclass(frozen=True)
class OneCall:
    """A Constraint. Errors: RequestError for a model that has no end-of-sequence id."""

    served: ServedModel
    opening: Opening
    skip_special_tokens: bool

    def __post_init__(self) -> None:
        if not self.served.grammars.eos_token_ids:
            message = "parallel_tool_calls is false, and this model has no end-of-sequence id to end after a call"
            raise RequestError("parallel_tool_calls", message)

    def begin(self) -> _State:
        """The state before the first token of an answer."""
        grammars = self.served.grammars
        detokenizer = IncrementalDetokenizer(self.served.tokenizer, skip_special_tokens=self.skip_special_tokens)
        return _State(detokenizer, MessageParts(self.opening, with_calls=True), grammars.only_ending)


class _State:
    def __init__(self, detokenizer: IncrementalDetokenizer, parts: MessageParts, only_the_end: np.ndarray) -> None:
        self._detokenizer, self._parts, self._only_the_end = detokenizer, parts, only_the_end

    def allowed(self) -> np.ndarray | None:
        return self._only_the_end if self._parts.num_ended_calls else None

    def accept(self, token_id: int) -> None:
        if self._parts.num_ended_calls and not has_bit(self._only_the_end, token_id):
            raise ValueError(f"token {token_id} is not allowed after the only call")
        self._parts.push(self._detokenizer.push(token_id), 1)

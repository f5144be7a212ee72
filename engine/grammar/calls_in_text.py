"""A Constraint for an answer that may call tools: its text is free, and what a call begins with begins a call.

[text] [<tool_call> one of the tools, with arguments of its schema </tool_call> [text]] ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import Grammar, has_bit
from reference.serving.request import Constraint, ConstraintState


def calls_in_text(
    compiler: GrammarCompiler,
    call: Grammar,  # of one call, tags and all
    begin_id: int,
    end_id: int,
    *,
    parallel: bool = True,  # else the answer ends with its first call
) -> Constraint:
    return _CallsInText(call, begin_id, end_id, None if parallel else compiler.only_ending)


@dataclass(frozen=True, eq=False)
class _CallsInText:
    call: Grammar
    begin_id: int
    end_id: int
    after_call: np.ndarray | None  # the mask, as ConstraintState has it

    def begin(self) -> ConstraintState:
        return _State(self)


class _State:
    def __init__(self, constraint: _CallsInText) -> None:
        self._constraint = constraint
        self._call: ConstraintState | None = None  # while in one
        self._in_text: np.ndarray | None = None  # what is allowed outside of calls

    def allowed(self) -> np.ndarray | None:
        return self._in_text if self._call is None else self._call.allowed()

    def accept(self, token_id: int) -> None:
        if self._call is None:
            if self._in_text is not None and not has_bit(self._in_text, token_id):
                raise ValueError(f"token {token_id} is not allowed after the only call")
            if token_id != self._constraint.begin_id:
                return
            self._call = self._constraint.call.begin()
        self._call.accept(token_id)
        if token_id == self._constraint.end_id:
            self._call, self._in_text = None, self._constraint.after_call

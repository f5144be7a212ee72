"""A Constraint for an answer that may call tools: its text is free, and what a call begins with begins a call.

[text] [<tool_call> one of the tools, with arguments of its schema </tool_call> [text]] ...

In text the tag cannot be spelled in other tokens: clients would get a call of it that nothing was asked of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import Grammar, has_bit
from engine.grammar.spelled import Spelled
from reference.serving.request import Constraint, ConstraintState


def calls_in_text(
    compiler: GrammarCompiler,
    call: Grammar,  # of one call, tags and all
    begin_id: int,
    end_id: int,
    *,
    parallel: bool = True,  # else the answer ends with its first call
) -> Constraint:
    return _CallsInText(compiler, call, begin_id, end_id, None if parallel else compiler.only_ending)


@dataclass(frozen=True, eq=False)
class _CallsInText:
    compiler: GrammarCompiler
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
        self._has_ended = False  # with the only call
        self._spelled = Spelled(constraint.compiler, constraint.begin_id)

    def allowed(self) -> np.ndarray | None:
        if self._call is not None:
            return self._call.allowed()
        return self._constraint.after_call if self._has_ended else self._spelled.allowed()

    def accept(self, token_id: int) -> None:
        if self._call is None:
            allowed = self.allowed()
            if allowed is not None and not has_bit(allowed, token_id):
                what = "after the only call" if self._has_ended else "to spell the beginning of a call"
                raise ValueError(f"token {token_id} is not allowed {what}")
            if token_id != self._constraint.begin_id:
                self._spelled.accept(token_id)
                return
            self._call = self._constraint.call.begin()
        self._call.accept(token_id)
        if token_id == self._constraint.end_id:
            self._call, self._has_ended = None, self._constraint.after_call is not None
            self._spelled = Spelled(self._constraint.compiler, self._constraint.begin_id)

"""A Constraint for a model that thinks before it answers.

    [ <think> anything </think> [newlines] ] answer

Nothing but its end is asked of a thought, and that this is a token: spelled in others it would end the thought for who
reads the text, and not here. After it Qwen3 writes an empty line, which is not the answer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from engine.core.masks import bits_of
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import has_bit
from engine.grammar.spelled import Spelled
from reference.serving.request import Constraint, ConstraintState

MAX_NEWLINE_TOKENS = 2  # between the thought and the answer


def after_reasoning(
    compiler: GrammarCompiler,
    answer: Constraint,
    begin_id: int,
    end_id: int,
    *,
    inside: bool = False,  # the prompt has begun the thought; else the model may, with its first token
) -> Constraint:
    """The answer, perhaps after a thought. In a thought every id but those of end-of-sequence is allowed."""
    begin = bits_of([begin_id], compiler.num_token_ids)
    return _AfterReasoning(compiler, answer, end_id, inside, begin, compiler.not_ending, compiler.newlines)


@dataclass(frozen=True, eq=False)
class _AfterReasoning:
    compiler: GrammarCompiler
    answer: Constraint
    end_id: int
    inside: bool
    begin_bits: np.ndarray  # masks, as ConstraintState has them
    thought_bits: np.ndarray
    newline_bits: np.ndarray

    def begin(self) -> ConstraintState:
        return _State(self, self.answer.begin(), _Stage.THOUGHT if self.inside else _Stage.FIRST)


class _Stage(Enum):
    FIRST = "the first token: of a thought or of the answer"
    THOUGHT = "in the thought"
    AFTER = "after the thought, before the answer"
    ANSWER = "in the answer"


class _State:
    def __init__(self, constraint: _AfterReasoning, answer: ConstraintState, stage: _Stage) -> None:
        self._constraint, self._answer, self._stage = constraint, answer, stage
        self._newline_tokens = 0
        self._spelled = Spelled(constraint.compiler, constraint.end_id)
        self._beside = self._allowed_beside_the_answer()

    def allowed(self) -> np.ndarray | None:
        if self._stage is _Stage.THOUGHT:
            return self._beside
        of_answer = self._answer.allowed()
        return of_answer if of_answer is None or self._beside is None else of_answer | self._beside

    def accept(self, token_id: int) -> None:
        if self._beside is None or not has_bit(self._beside, token_id):
            if self._stage is _Stage.THOUGHT:
                raise ValueError(f"token {token_id} is not allowed in a thought")
            self._answer.accept(token_id)
            self._stage = _Stage.ANSWER
        elif self._stage is _Stage.FIRST:
            self._stage = _Stage.THOUGHT
        elif self._stage is _Stage.AFTER:
            self._newline_tokens += 1
        elif token_id == self._constraint.end_id:
            self._stage = _Stage.AFTER
        else:
            self._spelled.accept(token_id)
        self._beside = self._allowed_beside_the_answer()

    def _allowed_beside_the_answer(self) -> np.ndarray | None:
        match self._stage:
            case _Stage.FIRST:
                return self._constraint.begin_bits
            case _Stage.THOUGHT:
                unspelled = self._spelled.allowed()
                thought = self._constraint.thought_bits
                return thought if unspelled is None else thought & unspelled
            case _Stage.AFTER if self._newline_tokens < MAX_NEWLINE_TOKENS:
                return self._constraint.newline_bits
            case _:
                return None

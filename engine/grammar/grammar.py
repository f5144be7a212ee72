"""A compiled grammar as a Constraint: what may follow, as bits over token ids."""

from __future__ import annotations

import logging

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

log = logging.getLogger(__name__)


class Grammar:
    """A Constraint. Its states share the lexer's tables, which grow as they are used: make one for each request."""

    def __init__(self, matcher: LLMatcher, num_token_ids: int) -> None:
        self._matcher, self._num_token_ids = matcher, num_token_ids

    def begin(self) -> GrammarState:
        """The state before the first token of an answer."""
        return GrammarState(self._matcher.deep_copy(), self._num_token_ids)


class GrammarState:
    """Where one sample stands; see `ConstraintState`."""

    def __init__(self, matcher: LLMatcher, num_token_ids: int) -> None:
        self._matcher, self._num_token_ids = matcher, num_token_ids
        self._allowed: np.ndarray | None = None  # until the next token is accepted

    def allowed(self) -> np.ndarray:
        if self._allowed is None:
            words = np.zeros(-(-self._num_token_ids // 32), np.int32)
            fill_next_token_bitmask(self._matcher, words[None])
            if self._matcher.is_error():
                # The library would end the answer here, as if it were complete.
                log.warning("the grammar of an answer gives up: %s", self._matcher.get_error().strip())
                words[:] = 0
            self._allowed = words.view(np.uint32)
            self._allowed.setflags(write=False)
        return self._allowed

    def accept(self, token_id: int) -> None:
        if not has_bit(self.allowed(), token_id):
            raise ValueError(f"token {token_id} is not allowed here by the grammar of the answer")
        self._matcher.consume_token(token_id)  # one that fails at what it allowed leaves an error for `allowed` to find
        self._allowed = None


def has_bit(words: np.ndarray, token_id: int) -> bool:
    """Does a mask of 32 ids a word, the lowest in the lowest bit, allow this one?"""
    return 0 <= token_id < 32 * len(words) and bool(words[token_id // 32] >> np.uint32(token_id % 32) & np.uint32(1))

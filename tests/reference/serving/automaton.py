"""Constraints as finite automata over token ids: what a grammar does, without a grammar."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS


@dataclass(frozen=True)
class Automaton:
    """It begins in state 0. Where it may end, every end-of-sequence id leads to a state where only these may follow."""

    steps: Sequence[Mapping[int, int]]  # for each state: token id -> the state after it
    ends: Collection[int]  # states where an answer may end
    eos_token_ids: Sequence[int] = (EOS,)
    num_token_ids: int = NUM_TOKEN_IDS

    def begin(self) -> AutomatonState:
        return AutomatonState(self)

    def holds(self, token_ids: Sequence[int]) -> bool:
        """Is this a whole answer?"""
        *before, last = token_ids
        state = 0
        for token_id in before:
            if token_id not in self.steps[state]:
                return False
            state = self.steps[state][token_id]
        return last in self.eos_token_ids and state in self.ends


@dataclass
class AutomatonState:
    automaton: Automaton
    state: int = 0
    ended: bool = False

    def next_ids(self) -> set[int]:
        if self.ended:
            return set(self.automaton.eos_token_ids)
        ends = self.automaton.eos_token_ids if self.state in self.automaton.ends else ()
        return {*self.automaton.steps[self.state], *ends}

    def allowed(self) -> np.ndarray:
        words = np.zeros(-(-self.automaton.num_token_ids // 32), np.uint32)
        for token_id in self.next_ids():
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        return words

    def accept(self, token_id: int) -> None:
        if token_id not in self.next_ids():
            raise ValueError(f"token {token_id} is not allowed in state {self.state}")
        if token_id in self.automaton.eos_token_ids:
            self.ended = True
        else:
            self.state = self.automaton.steps[self.state][token_id]


def sequence(*token_ids: int) -> Automaton:
    """The one answer of these tokens."""
    return Automaton([*({token_id: i + 1} for i, token_id in enumerate(token_ids)), {}], {len(token_ids)})


@dataclass(frozen=True)
class Anything:
    """A constraint that allows all."""

    def begin(self) -> Anything:
        return self

    def allowed(self) -> None:
        return None

    def accept(self, token_id: int) -> None:
        pass


def automata(max_states: int = 4) -> st.SearchStrategy[Automaton]:
    """Random ones. From every state the last one can be reached, where answers may end: there is always a way on."""

    def build(steps: list[dict[int, int]], ends: set[int]) -> Automaton:
        last = len(steps) - 1
        inside = [{token_id: to % (last + 1) for token_id, to in step.items()} for step in steps]
        onward = [step | {65 + i: i + 1} for i, step in enumerate(inside[:-1])]
        return Automaton([*onward, inside[-1]], {last} | {end for end in ends if end <= last})

    token_ids = st.integers(0, NUM_TOKEN_IDS - 1).filter(lambda token_id: token_id != EOS)
    step = st.dictionaries(token_ids, st.integers(0, max_states - 1), max_size=6)
    return st.builds(build, st.lists(step, min_size=1, max_size=max_states), st.sets(st.integers(0, max_states - 1)))

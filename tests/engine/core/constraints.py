"""A constraint for tests: what it allows is a pure function of a salt and the tokens so far."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

import numpy as np

from engine.core.masks import bits_of
from engine.grammar.grammar import has_bit
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS


@dataclass(frozen=True)
class Salted:
    """A Constraint: one id, two, or thirty, mostly; at times any, and at times none."""

    salt: int

    def begin(self) -> _State:
        return _State(self.salt)


class _State:
    def __init__(self, salt: int) -> None:
        self._so_far = [salt]

    def allowed(self) -> np.ndarray | None:
        chance = random.Random(zlib.crc32(repr(self._so_far).encode()))
        share = chance.random()
        if share < 0.15:
            return None
        if share < 0.17:
            return bits_of([], NUM_TOKEN_IDS)
        token_ids = chance.sample(range(NUM_TOKEN_IDS), chance.choice((1, 2, 30)))
        return bits_of([*token_ids, EOS] if chance.random() < 0.2 else token_ids, NUM_TOKEN_IDS)

    def accept(self, token_id: int) -> None:
        allowed = self.allowed()
        if allowed is not None and not has_bit(allowed, token_id):
            raise ValueError(f"token {token_id} is not allowed")
        self._so_far.append(token_id)

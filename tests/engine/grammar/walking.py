"""Answers under a constraint: those of a random model, and a given one tried token by token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from random import Random

import numpy as np

from engine.tokenizer import Tokenizer
from reference.serving.request import Constraint, ConstraintState

# What brings a JSON text to its end soonest, in and outside of strings.
HURRY = {True: [b'"'], False: [b"}", b"]", b'"', b",", b"n", b"u", b"l", b":", b"0"]}


def allowed_ids(state: ConstraintState) -> set[int]:
    words = state.allowed()
    assert words is not None and words.dtype == np.uint32
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def accept_all(state: ConstraintState, token_ids: Iterable[int]) -> ConstraintState:
    for token_id in token_ids:
        state.accept(token_id)
    return state


def holds(constraint: Constraint, token_ids: Sequence[int], eos: int) -> bool:
    """Is this a whole answer?"""
    state = constraint.begin()
    for token_id in [*token_ids, eos]:
        if token_id not in allowed_ids(state):
            return False
        state.accept(token_id)
    return True


def bytes_as_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text in tokens of one byte, as no model writes it."""
    of_byte = {tokenizer.id_to_bytes(token_id): token_id for token_id in range(256)}
    return [of_byte[bytes([byte])] for byte in text.encode()]


def random_answer(
    constraint: Constraint,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int],
    seed: int,
    *,
    calm: int = 60,  # tokens drawn uniformly from what is allowed
    budget: int = 300,
) -> list[int] | None:
    """The answer of a model that knows nothing, and is in a hurry later on; None if it is not finished in time."""
    random, state, answer, text = Random(seed), constraint.begin(), list[int](), b""
    in_a_hurry = {
        inside: [bytes_as_ids(tokenizer, byte.decode())[0] for byte in wanted] for inside, wanted in HURRY.items()
    }
    while len(answer) < budget:
        allowed = allowed_ids(state)
        assert allowed, "at least one token is allowed"
        ends = allowed.intersection(eos_token_ids)
        assert ends in (set(), set(eos_token_ids)), "all of the model's or none"
        inside_string = re.findall(rb'"|\\.', text).count(b'"') % 2 == 1
        hurried = [token_id for token_id in in_a_hurry[inside_string] if token_id in allowed]
        if len(answer) >= calm and ends:
            allowed = ends
        elif len(answer) >= calm and hurried:
            allowed = {hurried[0]}
        token_id = random.choice(sorted(allowed))
        state.accept(token_id)
        if token_id in eos_token_ids:
            assert allowed_ids(state) == set(eos_token_ids), "after the end there is only the end"
            return answer
        answer.append(token_id)
        text += tokenizer.id_to_bytes(token_id)
    return None

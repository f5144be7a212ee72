"""Logits of every kind: spread, tied, few left, infinite, not numbers, likeliest where no token is."""

from __future__ import annotations

from functools import cache

import numpy as np

VOCAB_SIZE = 3001  # more than MANY, and no multiple of 32
NUM_TOKEN_IDS = 2990  # the rest is padding


def spread(seed: int, scale: float = 3.0, size: int = VOCAB_SIZE) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def tied(seed: int, levels: int = 3, size: int = VOCAB_SIZE) -> np.ndarray:
    """A few values, zero of both signs among them: thousands of ties."""
    values = np.array([0.0, -0.0, *range(1, levels - 1)], np.float32)
    return np.random.default_rng(seed).choice(values, size)


def few_left(seed: int, left: int = 5, size: int = VOCAB_SIZE) -> np.ndarray:
    logits = np.full(size, -np.inf, np.float32)
    random = np.random.default_rng(seed)
    logits[random.choice(size, left, replace=False)] = random.standard_normal(left)
    return logits


def with_value(value: float, logits: np.ndarray, place: int = 17) -> np.ndarray:
    logits = logits.copy()
    logits[place] = value
    return logits


def padding_is_likeliest(seed: int, size: int = VOCAB_SIZE) -> np.ndarray:
    logits = spread(seed, size=size)
    logits[NUM_TOKEN_IDS if size == VOCAB_SIZE else size - 5 :] = 40.0
    return logits


@cache
def kinds(size: int) -> list[np.ndarray]:
    return [
        *(spread(seed, scale, size) for seed in range(3) for scale in (0.01, 3.0, 30.0)),
        *(tied(seed, levels, size) for seed in range(2) for levels in (2, 4)),
        np.zeros(size, np.float32),
        few_left(0, 5, size),
        few_left(1, 1, size),
        with_value(np.nan, spread(4, size=size)),
        padding_is_likeliest(7, size),
        with_value(np.inf, spread(5, size=size)),
        with_value(-np.inf, spread(6, size=size)),
        np.full(size, np.nan, np.float32),
        np.full(size, -np.inf, np.float32),
    ]

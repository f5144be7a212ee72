"""What is asked of a server under measurement: prompts of random tokens, and how many tokens to answer with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Work:
    """One request: greedy, and never ended by an end-of-sequence id."""

    prompt_token_ids: tuple[int, ...]
    num_output: int


def workload(kind: str, count: int, num_token_ids: int, *, prompt: int, output: int, seed: int = 0) -> list[Work]:
    """count requests. kind "even": all with `prompt` tokens in and `output` out. "mixed": lengths spread evenly between
    a quarter and seven quarters of those, prompts and outputs apart. Errors: ValueError for another kind."""
    rng = np.random.default_rng(seed)
    if kind == "even":
        prompts, outputs = np.full(count, prompt), np.full(count, output)
    elif kind == "mixed":
        spread = (0.25 + 1.5 * (np.arange(count) + 0.5) / count) if count > 1 else np.ones(1)
        prompts, outputs = (np.maximum(1, rng.permutation(spread) * mean).astype(int) for mean in (prompt, output))
    else:
        raise ValueError(f"workload {kind!r} is unknown; known are even, mixed")
    return [
        Work(tuple(rng.integers(0, num_token_ids, length).tolist()), int(num_output))
        for length, num_output in zip(prompts, outputs, strict=True)
    ]

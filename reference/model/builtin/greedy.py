"""Greedy answers of a model to many prompts at once, nothing cached: for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from reference.formats import Array
from reference.model.config import ModelConfig
from reference.model.mtp import mtp_logits
from reference.model.qwen3 import Positions, forward, logits
from reference.model.rope_table import rope_table
from reference.model.weights import Weights


@dataclass(frozen=True)
class Answer:
    """What a model wrote, token by token.

    margins: how far the chosen logit was above the second. drafts_kept: at each token after the first, whether the MTP
    layer had drafted it one step earlier.
    """

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]
    drafts_kept: tuple[bool, ...]


class GreedyModel:
    """A model and the jitted passes over a rectangle of sequences."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights
        cos, sin = rope_table(config.rope, config.head_dim, config.max_position_embeddings)
        self._table = jnp.asarray(cos), jnp.asarray(sin)
        self._next = jax.jit(self._next_tokens)
        self._drafts = jax.jit(self._draft_tokens)

    def answers(
        self, prompts: Sequence[Sequence[int]], max_new: int, stop: int | None, *, rows: int = 64
    ) -> list[Answer]:
        """Continue each prompt by up to `max_new` tokens, `stop` included. Prompts are run in groups of `rows`."""
        rows = min(rows, len(prompts))
        longest = max(len(prompt) for prompt in prompts) + max_new
        shape = (rows, -(-longest // 64) * 64)
        groups = [prompts[start : start + rows] for start in range(0, len(prompts), rows)]
        return [answer for group in groups for answer in self._group(group, shape, max_new, stop)]

    def _group(
        self, prompts: Sequence[Sequence[int]], shape: tuple[int, int], max_new: int, stop: int | None
    ) -> list[Answer]:
        rows = shape[0]
        tokens = np.zeros(shape, np.int32)
        ends = np.ones(rows, np.int32)  # unused rows hold one token
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            ends[row] = len(prompt)
        begins = ends.copy()
        margins = np.zeros((rows, max_new), np.float32)
        running = np.arange(rows) < len(prompts)
        for new in range(max_new):
            chosen, margin = (np.asarray(part) for part in self._next(self.weights, tokens, ends - 1))
            margins[running, new] = margin[running]
            tokens[running, ends[running]] = chosen[running]
            ends = ends + running
            running = running & (chosen != stop)
            if not running.any():
                break
        drafts = np.asarray(self._drafts(self.weights, tokens))
        answers = []
        for row in range(len(prompts)):
            written = tokens[row, begins[row] : ends[row]]
            # The draft at position p is for token p + 2.
            drafted = drafts[row, begins[row] - 1 : ends[row] - 2] == written[1:]
            kept = tuple(bool(same) for same in drafted)
            shown = tuple(float(margin) for margin in margins[row, : len(written)])
            answers.append(Answer(tuple(int(token) for token in written), shown, kept))
        return answers

    def _positions(self, length: int) -> Positions:
        return Positions(jnp.arange(length, dtype=jnp.int32), *self._table)

    def _next_tokens(self, weights: Weights, tokens: Array, last: Array) -> tuple[Array, Array]:
        hidden = partial(forward, weights, self.config, positions=self._positions(tokens.shape[1]))
        x = jax.vmap(hidden)(tokens)  # [rows, T, H]
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]  # [rows, H]
        scores, token_ids = jax.lax.top_k(logits(weights, self.config, x), 2)
        return token_ids[:, 0], scores[:, 0] - scores[:, 1]

    def _draft_tokens(self, weights: Weights, tokens: Array) -> Array:
        where = self._positions(tokens.shape[1])

        def draft(row: Array) -> Array:  # i32 [T]
            x = forward(weights, self.config, row, where)
            return jnp.argmax(mtp_logits(weights, self.config, x, jnp.roll(row, -1), where), axis=-1)

        return jax.lax.map(draft, tokens)

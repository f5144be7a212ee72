"""The reference panel behind an engine: the text of `qwen3.py` over paged KV memory, compiled by JAX.

Rows attend in groups (`attend_rows.py`). A batch of decode rows alone goes through several layers in one compiled
function (`decode_layers.py`); a mixed one through each layer in a few. Shapes are padded to buckets, so few are ever
compiled, and layers of one shape share their code.

JAX runs what it is told asynchronously and in order: `submit` returns while the batch is computed, the next batch takes
the sampled tokens from where they are, and `result` waits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from reference.formats import Array
from reference.kernels.embedding import embedding
from reference.kernels.log_probs import log_softmax, token_log_probs
from reference.kernels.sampling import is_usable
from reference.model.attend_rows import RowGroup, attend_rows, row_groups
from reference.model.config import ModelConfig
from reference.model.decode_layers import DecodeRows, decode_layers, parts_of
from reference.model.kv_memory import KeysValues, Slots, padded_slots, storage_dtype, write
from reference.model.padding import bucket_queries, bucket_rows, padded, padded_rows
from reference.model.qwen3 import Positions, after_attention, before_attention, logits
from reference.model.rope_table import rope_table
from reference.model.runner import LOGIT_ROWS, keep_compiled_code
from reference.model.sample_rows import (
    largest,
    rows_that_sample,
    sample_rows,
)
from reference.model.tensors import checkpoint_tensors
from reference.model.weights import Layer, Weights, load_weights, widened
from reference.serving.in_flight import InFlight
from reference.serving.request import MAX_TOP_LOGPROBS
from reference.serving.runner import MAX_ROWS, NOT_SAMPLED, Batch, StepOutput, TokenScores

BLOCK_SIZE = 16  # tokens
SEQUENCES = 16  # of full length, for which there is KV memory by default
MEMORY_SHARE = 1 / 8  # of the machine's memory, at most, for KV memory, and for weights in float32


class _Done(NamedTuple):
    """The arrays of a batch, on their way."""

    batch: Batch
    rows: np.ndarray  # those that sample
    token_ids: Array | None  # i32 [>= len(rows)]
    scores: tuple[Array, ...] | None
    prompt_scores: list[tuple[Array, ...]]


class PagedRunner:
    """A Qwen3 model as a `Runner`. Logits are float32; keys and values are held in the model's dtype."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, np.ndarray],  # a checkpoint's, by Hugging Face name
        *,
        num_token_ids: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        widen: bool = False,
    ) -> None:
        """num_token_ids: ids from there on are padding, never sampled. max_model_len: tokens of the longest sequence.

        widen: hold the weights of projections in float32, which is what they are multiplied in: the same results to the
        bit, faster, in twice the memory. Errors: those of `load_weights`.
        """
        self.config = config
        self.vocab_size = config.vocab_size
        self.num_blocks, self.block_size = num_blocks, block_size
        self._num_token_ids, self._max_model_len = num_token_ids, max_model_len
        weights = load_weights(config, tensors, put=jnp.asarray)
        if widen:
            weights = widened(weights)
        self._layers = weights.layers
        self._ends = weights._replace(layers=(), mtp=None)  # what stands before and after the layers
        cos, sin = rope_table(config.rope, config.head_dim, max_model_len)
        self._cos, self._sin = jnp.asarray(cos), jnp.asarray(sin)
        self._in_flight = InFlight[_Done]()
        self.reset()
        self._compile()

    def reset(self) -> None:
        self._in_flight.clear()
        self._previous = jnp.zeros(MAX_ROWS, jnp.int32)  # what each row of the last batch sampled
        self.kv: list[KeysValues] = []  # the old memory is let go of before there is new
        shape = (self.num_blocks, self.config.num_kv_heads, self.block_size, self.config.head_dim)
        dtype = storage_dtype(self.config.dtype.dtype)
        self.kv = [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in self._layers]

    def _compile(self) -> None:
        """Declare what is compiled when its shapes are first met."""
        config = self.config

        def attend(q: Array, kv: KeysValues, group: RowGroup, attended: Array, max_query_len: int) -> Array:
            return attend_rows(q, kv, group, attended, max_query_len)

        def decode(
            layers: tuple[Layer, ...],
            ends: Weights,
            kv: list[KeysValues],
            x: Array,
            previous: Array,
            rows: DecodeRows,
            is_last: bool,
        ) -> tuple[Array, list[KeysValues], Array | None]:
            x = _known(x, previous) if x.ndim == 1 else x
            return decode_layers(layers, ends, config, kv, x, rows, is_last=is_last)

        def begin_layer(
            layer: Layer, kv: KeysValues, x: Array, positions: Positions, slots: Slots
        ) -> tuple[Array, KeysValues]:
            q, k, v = before_attention(layer, config, x, positions)
            padding = jnp.zeros((bucket_queries(len(q)) - len(q), *q.shape[1:]), q.dtype)
            return jnp.concat([q, padding]), write(k, v, kv, slots)

        def end_layer(layer: Layer, x: Array, attended: Array) -> Array:
            return after_attention(layer, config, x, attended[: len(x)])

        def remember(token_ids: Array, row_numbers: Array) -> Array:
            return jnp.zeros(MAX_ROWS, jnp.int32).at[row_numbers].set(token_ids, mode="drop")

        self._decode = jax.jit(decode, static_argnums=6, donate_argnums=2)
        self._begin_layer = jax.jit(begin_layer, donate_argnums=1)
        self._attend = jax.jit(attend, static_argnums=4, donate_argnums=3)
        self._end_layer = jax.jit(end_layer)
        self._embed = jax.jit(lambda ids, previous, table: embedding(jnp.maximum(_known(ids, previous), 0), table))
        self._rows = jax.jit(lambda x, index: x[index])  # apart from the head, which is compiled anew for each shape
        self._logits = jax.jit(lambda ends, x: logits(ends, config, x))
        self._known = jax.jit(_known)
        self._remember = jax.jit(remember)
        self._scores = jax.jit(token_scores, static_argnums=2)

    def submit(self, batch: Batch) -> int:
        self._in_flight.check_room()
        batch.check_rows()
        rows = np.flatnonzero(batch.sampling.samples)
        forward = self._decoded if batch.num_decode_rows == batch.num_rows else self._mixed
        x, row_logits = forward(batch, rows)
        token_ids = scores = None
        prompt_scores = self._prompt_scores(batch, x)
        if row_logits is not None:
            token_ids, scores = self._sampled(batch, rows, row_logits)
        return self._in_flight.add(_Done(batch, rows, token_ids, scores, prompt_scores))

    def result(self, ticket: int) -> StepOutput:
        done = self._in_flight.take(ticket)
        token_ids = np.full(done.batch.num_rows, NOT_SAMPLED, np.int32)
        if done.token_ids is not None:
            token_ids[done.rows] = np.asarray(done.token_ids)[: len(done.rows)]
        scores = prompt_scores = None
        if done.scores is not None:
            of_rows = TokenScores(*(np.asarray(values)[: len(done.rows)] for values in done.scores))
            scores = of_rows.at_rows(done.rows, done.batch.num_rows)
        if done.prompt_scores:
            parts = zip(*done.prompt_scores, strict=True)
            num_scores = len(done.batch.score_index)
            prompt_scores = TokenScores(*(np.concatenate([*map(np.asarray, p)])[:num_scores] for p in parts))
        return StepOutput(token_ids, scores, prompt_scores)

    def _decoded(self, batch: Batch, rows: np.ndarray) -> tuple[Array, Array | None]:
        """Like `_mixed`, for rows of one token each."""
        num_tokens = bucket_rows(batch.num_tokens)
        ((group, _),) = row_groups(batch, self.block_size, self._max_model_len)
        decode_rows = DecodeRows(
            Positions(padded(batch.positions, num_tokens, 0), self._cos, self._sin),
            padded_slots(batch.slot_mapping, num_tokens, self.block_size, all_may_open=True),
            group,
            padded(rows.astype(np.int32), num_tokens, 0),
        )
        x: Array = padded(batch.token_ids, num_tokens, 0)
        row_logits = None
        for part in parts_of(self._layers):
            inside = slice(part.start, part.stop)
            is_last = part.stop == len(self._layers)
            x, self.kv[inside], row_logits = self._decode(
                self._layers[inside], self._ends, self.kv[inside], x, self._previous, decode_rows, is_last
            )
        return x, row_logits if len(rows) else None

    def _mixed(self, batch: Batch, rows: np.ndarray) -> tuple[Array, Array | None]:
        """Every token through every layer; keys and values go to their slots.

        [T padded, H], and the logits of `rows`, f32 [>= len(rows), V], if there are any.
        """
        num_tokens = bucket_rows(batch.num_tokens)
        # What every layer reads is put on the device once.
        groups = [
            (jax.device_put(group), max_query_len)
            for group, max_query_len in row_groups(batch, self.block_size, self._max_model_len)
        ]
        index = jnp.asarray(padded(batch.positions, num_tokens, 0))
        slots = jax.device_put(padded_slots(batch.slot_mapping, num_tokens, self.block_size))
        positions = Positions(index, self._cos, self._sin)
        x = self._embed(padded(batch.token_ids, num_tokens, 0), self._previous, self._ends.embedding)
        # Every layer's attention fills the same memory: padding stays 0, and all else is written anew.
        heads = (bucket_queries(num_tokens), self.config.num_heads, self.config.head_dim)
        attended = jnp.zeros(heads, x.dtype)
        for number, layer in enumerate(self._layers):
            q, self.kv[number] = self._begin_layer(layer, self.kv[number], x, positions, slots)
            for group, max_query_len in groups:
                attended = self._attend(q, self.kv[number], group, attended, max_query_len)
            x = self._end_layer(layer, x, attended)
        if not len(rows):
            return x, None
        last = padded(batch.query_start[1:][rows] - 1, bucket_rows(len(rows)), 0)
        return x, self._logits(self._ends, self._rows(x, last))

    def _sampled(self, batch: Batch, rows: np.ndarray, row_logits: Array) -> tuple[Array, tuple[Array, ...] | None]:
        num_rows = len(row_logits)
        arrays, stages = rows_that_sample(batch.sampling, batch.seq_lens)
        if stages.adjusts or stages.draws:
            arrays = padded_rows(arrays, stages, num_rows)
        numbers = padded(rows.astype(np.int32), num_rows, MAX_ROWS)
        if stages.adjusts:
            arrays = arrays._replace(history=self._known(arrays.history, self._previous))
        token_ids = sample_rows(row_logits, arrays, stages, self._num_token_ids, run=_compiled)
        self._previous = self._remember(token_ids, numbers)
        num_top = int(batch.sampling.num_logprobs[rows].max())
        return token_ids, None if num_top < 0 else self._scores(row_logits, token_ids, self._num_top(num_top))

    def _prompt_scores(self, batch: Batch, x: Array) -> list[tuple[Array, ...]]:
        scores = []
        for start in range(0, len(batch.score_index), LOGIT_ROWS):
            index = padded(batch.score_index[start : start + LOGIT_ROWS], LOGIT_ROWS, 0)
            target = padded(batch.score_target[start : start + LOGIT_ROWS], LOGIT_ROWS, 0)
            row_logits = self._logits(self._ends, self._rows(x, index))
            scores.append(self._scores(row_logits, target, self._num_top(batch.score_num_top)))
        return scores

    def _num_top(self, asked: int) -> int:
        """How many of the likeliest tokens are looked for: none, or as many as may be asked for."""
        return min(MAX_TOP_LOGPROBS, self.vocab_size) if asked else 0


def token_scores(logits: Array, token_ids: Array, num_top: int) -> tuple[Array, Array, Array, Array]:
    """`token_log_probs`, which sorts whole rows, with the likeliest tokens found by XLA's top-k."""
    log_prob, rank, _, _ = token_log_probs(logits, jnp.where(is_usable(logits), token_ids, -1), 0)
    _, top_ids = largest(logits, count=num_top)
    return log_prob, rank, top_ids, jnp.take_along_axis(log_softmax(logits), top_ids, axis=-1)


@cache
def _jitted(function: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    return jax.jit(function, static_argnames=static)


def _compiled(function: Callable[..., Any], *arrays: Any, **static: Any) -> Any:
    return _jitted(function, tuple(static))(*arrays, **static)


def _known(token_ids: Array, previous: Array) -> Array:
    """Tokens, with those that the previous batch sampled (-1 - row) in their place."""
    return jnp.where(token_ids < 0, previous[jnp.maximum(-1 - token_ids, 0)], token_ids)


def build_runner(
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    num_token_ids: int,
    max_model_len: int,
    num_kv_tokens: int | None = None,
    cache: Path | None = None,
) -> PagedRunner:
    """The reference panel for an engine on this machine.

    num_kv_tokens: capacity of KV memory; None takes what SEQUENCES sequences of full length need, but not more than
    MEMORY_SHARE of the machine's memory. Weights are widened if they fit in as much. cache: a folder where compiled
    code is kept for later processes; None keeps none.
    """
    if cache is not None:
        keep_compiled_code(cache / "jax")
    share = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * config.dtype.dtype.itemsize
    if num_kv_tokens is None:
        num_kv_tokens = min(SEQUENCES * max_model_len, share // per_token)
    num_weights = sum(math.prod(spec.shape) for spec in checkpoint_tensors(config).values())
    return PagedRunner(
        config,
        tensors,
        num_token_ids=num_token_ids,
        max_model_len=max_model_len,
        num_blocks=max(1, -(-num_kv_tokens // BLOCK_SIZE)),
        widen=4 * num_weights <= share,
    )

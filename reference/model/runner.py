"""The reference panel under JAX: the text of `qwen3.py`, compiled, whole sequences at a time.

A sequence is padded to the next of a few bucketed lengths, so few shapes are ever compiled; attention is causal, so
the padding at the end reaches no token before it. Layers of one shape share one compiled function, which keeps
compilation to a second or so a bucket; JAX keeps compiled code on disk between processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from reference.formats import Array
from reference.kernels.embedding import embedding
from reference.model.config import ModelConfig
from reference.model.qwen3 import Attend, Positions, attend_whole, decoder_layer, logits
from reference.model.rope_table import rope_table
from reference.model.weights import load_weights

SMALLEST_BUCKET = 16
LOGIT_ROWS = 64  # rows of float32 logits held at once: at 151,936 ids, 39 MB


def bucket_length(num_tokens: int) -> int:
    """The padded length of a sequence: the next of 16, 24, 32, 48, 64, 96, ...; past 16, under a third is padding."""
    power = max(SMALLEST_BUCKET, 1 << (num_tokens - 1).bit_length())
    return power * 3 // 4 if power > SMALLEST_BUCKET and num_tokens <= power * 3 // 4 else power


def attend_without_padding(num_tokens: Array | int) -> Attend:
    """Causal attention over the first `num_tokens` of a padded sequence.

    Padding has probability 0 anyway; but what float16 has overflowed to in it would make 0 x infinity of that.
    """

    def attend(q: Array, k: Array, v: Array) -> Array:
        is_token = jnp.arange(v.shape[0]) < num_tokens
        return attend_whole(q, k, jnp.where(is_token[:, None, None], v, 0))

    return attend


def keep_compiled_code(directory: Path) -> None:
    """Let JAX keep what it compiles under `directory` and find it there in later processes."""
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


class JaxRunner:
    """A Qwen3 model that answers for one whole sequence at a time. Logits are float32."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, np.ndarray], *, max_model_len: int) -> None:
        """tensors: a checkpoint's, by Hugging Face name, in any memory. max_model_len: tokens of the longest sequence.

        Errors: those of `load_weights`.
        """
        self.config = config
        self.max_model_len = max_model_len
        weights = load_weights(config, tensors, put=jnp.asarray)
        self._layers = weights.layers
        self._ends = weights._replace(layers=(), mtp=None)  # what stands before and after the layers
        # Padding has positions too: without an angle it would be NaN, and 0 x NaN reaches the tokens before it.
        cos, sin = rope_table(config.rope, config.head_dim, bucket_length(max_model_len))
        self._cos, self._sin = jnp.asarray(cos), jnp.asarray(sin)
        self._embed = jax.jit(embedding)
        self._layer = jax.jit(
            lambda layer, x, positions, num_tokens: decoder_layer(
                layer, config, x, positions, attend_without_padding(num_tokens)
            )
        )
        self._logits = jax.jit(lambda ends, x: logits(ends, config, x))

    def last_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """f32 [V]: what the model says of the token after the sequence."""
        x = self._hidden(token_ids)
        last = len(token_ids) - 1
        return np.asarray(self._logits(self._ends, x[last : last + 1]))[0]

    def all_logits(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        """f32 [V], once for each position of the sequence: what the model says of the token after it."""
        x = self._hidden(token_ids)
        rows = min(LOGIT_ROWS, x.shape[0])
        for start in range(0, len(token_ids), rows):
            block = np.asarray(self._logits(self._ends, x[start : start + rows]))
            yield from block[: len(token_ids) - start]

    def _hidden(self, token_ids: Sequence[int]) -> Array:  # [bucket, H]
        if not 0 < len(token_ids) <= self.max_model_len:
            raise ValueError(f"a sequence has {len(token_ids)} tokens; expected 1 to {self.max_model_len}")
        length = bucket_length(len(token_ids))
        padded = np.zeros(length, np.int32)
        padded[: len(token_ids)] = token_ids
        positions = Positions(jnp.arange(length, dtype=jnp.int32), self._cos, self._sin)
        x = self._embed(jnp.asarray(padded), self._ends.embedding)
        for layer in self._layers:
            x = self._layer(layer, x, positions, len(token_ids))
        return x

"""Whole models in both panels, on the same tokens: how far each layer and the log-probabilities are from exact ones.

Exact is the reference in float32, on the same weights. Three are compared with it:

    a layer      both panels are given the reference's residual stream, so errors do not add up
    the model    each panel's own residual stream through all layers, and the log-probabilities at its end

The reference rounds to the model's dtype as well, so its own error says how large one may be. The panels round at other
places: the optimized one adds a product to the residual stream before it rounds, the reference after. Where two experts
nearly tie, either panel may take the other one, and such a token's error is large: so the median token decides, and
the worst is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimized.device import Tensor
from optimized.model.layer import Positions as DevicePositions
from optimized.model.layer import RowGroup, decoder_layer
from optimized.model.machine import Machine
from optimized.model.runner import DeviceRunner
from optimized.model.stream import Stream
from parity.executors.placement import as_array
from parity.executors.simulate.memory import SimulatedTensor
from parity.ulp import ulp_errors
from reference.formats import Array
from reference.kernels.embedding import embedding
from reference.kernels.log_probs import log_softmax
from reference.model import qwen3
from reference.model.config import ModelConfig
from reference.model.rope_table import rope_table
from reference.model.weights import Weights, load_weights

MARGIN = 1.25  # how many times the reference's own error may be ours
FLOOR_ULP, FLOOR_LOG_PROB = 0.3, 0.01  # errors below which nothing is proven


@dataclass(frozen=True)
class Errors:
    """Of T tokens, each by the root mean square over its channels, or the mean over its vocabulary."""

    median: float
    worst: float

    @staticmethod
    def of(tokens: Array) -> Errors:
        return Errors(float(np.median(tokens)), float(np.max(tokens)))


@dataclass(frozen=True)
class Compared:
    """Both panels against the exact result."""

    what: str
    unit: str
    ours: Errors
    reference: Errors
    ok: bool


@dataclass(frozen=True)
class ModelParity:
    compared: tuple[Compared, ...]
    # Shares of the tokens at which the likeliest next token is the exact model's; and at which both panels' are one.
    agreement: float
    agreement_of_reference: float
    agreement_of_panels: float

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.compared)


def compare(
    config: ModelConfig, tensors: Mapping[str, np.ndarray], machine: Machine, token_ids: np.ndarray, block_size: int
) -> ModelParity:
    """token_ids: i32 [T], one sequence. Errors: those of `DeviceRunner` and of `load_weights`."""
    weights = load_weights(config, tensors)
    cos, sin = rope_table(config.rope, config.head_dim, len(token_ids))
    positions = qwen3.Positions(np.arange(len(token_ids), dtype=np.int32), np.asarray(cos), np.asarray(sin))
    ours = OptimizedModel(config, tensors, machine, len(token_ids), block_size)
    x = embedding(token_ids, weights.embedding)
    compared = []
    for number, layer in enumerate(weights.layers):
        after = qwen3.decoder_layer(layer, config, x, positions, qwen3.attend_whole)
        exact = qwen3.decoder_layer(_wide(layer), config, _wide(x), positions, qwen3.attend_whole)
        compared.append(_layer(f"layer {number}", ours.layer(number, x), after, exact))
        x = after
    with np.errstate(all="ignore"):
        theirs = log_softmax(qwen3.logits(weights, config, x))
        exact = log_softmax(_exact_logits(weights, config, token_ids, positions))
    own = log_softmax(ours.logits(token_ids))
    compared.append(_log_probs(own, theirs, exact))
    best = [np.argmax(one, axis=-1) for one in (own, theirs, exact)]
    shares = (float(np.mean(best[a] == best[b])) for a, b in ((0, 2), (1, 2), (0, 1)))
    return ModelParity(tuple(compared), *shares)


def _layer(what: str, ours: Array, theirs: Array, exact: Array) -> Compared:
    """ULPs of the residual stream behind a layer, each token by the root mean square over its channels."""
    errors = (np.sqrt(np.mean(ulp_errors(one, exact.astype(np.float64)) ** 2, axis=-1)) for one in (ours, theirs))
    of_ours, of_reference = map(Errors.of, errors)
    return Compared(what, "ULP", of_ours, of_reference, _holds(of_ours, of_reference, FLOOR_ULP))


def _log_probs(ours: Array, theirs: Array, exact: Array) -> Compared:
    """Differences of log-probabilities, each token by the mean over what the exact model expects to come next."""
    share = np.exp(exact)
    of_ours, of_reference = (Errors.of((np.abs(one - exact) * share).sum(axis=-1)) for one in (ours, theirs))
    held = _holds(of_ours, of_reference, FLOOR_LOG_PROB)
    return Compared("log-probabilities", "nat", of_ours, of_reference, held)


def _holds(ours: Errors, reference: Errors, floor: float) -> bool:
    return ours.median <= MARGIN * max(reference.median, floor)


def _exact_logits(
    weights: Weights, config: ModelConfig, token_ids: np.ndarray, positions: qwen3.Positions
) -> Array:  # f32 [T, V]
    """A layer at a time is widened: a model in float32 is twice what it is."""
    x = _wide(embedding(token_ids, weights.embedding))
    for layer in weights.layers:
        x = qwen3.decoder_layer(_wide(layer), config, x, positions, qwen3.attend_whole)
    ends = Weights(_wide(weights.embedding), (), _wide(weights.norm), _wide(weights.lm_head), None)
    return qwen3.logits(ends, config, x)


def _wide(value: Any) -> Any:
    """Arrays in float32, in whatever named tuples they are."""
    if isinstance(value, tuple):
        return type(value)(*map(_wide, value))
    return value if value is None else np.asarray(value, np.float32)


class OptimizedModel:
    """One sequence in the optimized panel."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, np.ndarray],
        machine: Machine,
        num_tokens: int,
        block_size: int,
    ) -> None:
        num_blocks = -(-num_tokens // block_size)
        limits = {"num_token_ids": config.vocab_size, "max_model_len": num_tokens}
        runner = DeviceRunner(config, tensors, machine, num_blocks=num_blocks, block_size=block_size, **limits)
        self._model, self._machine, self._config = runner.model, machine, config
        index = np.arange(num_tokens, dtype=np.int32)
        arrays = {
            "index": index,
            "query_start": np.array([0, num_tokens], np.int32),
            "seq_lens": np.array([num_tokens], np.int32),
            "table": np.arange(num_blocks, dtype=np.int32)[None],
        }
        with machine.launching():
            on = {name: self._put(array) for name, array in arrays.items()}
        self._group = RowGroup(0, num_tokens, num_tokens, on["query_start"], on["seq_lens"], on["table"])
        self._positions = DevicePositions(on["index"], on["index"], *runner.tables)

    def _put(self, array: np.ndarray) -> Tensor:
        tensor = self._machine.device.empty(array.shape, str(array.dtype))
        self._machine.fill(tensor, array)
        return tensor

    def layer(self, number: int, x: Array) -> Array:  # [T, H]
        """The residual stream behind a layer that it comes into as x."""
        weights = self._model.weights
        with self._machine.launching():
            stream = Stream(self._put(np.asarray(x)), self._config.rms_norm_eps)
            kv = self._model.kv[number]
            layer = weights.layers[number]
            decoder_layer(self._model.device, layer, self._config, stream, kv, self._positions, (self._group,))
            return on_host(stream.settled(weights.norm))

    def logits(self, token_ids: np.ndarray) -> Array:  # f32 [T, V]
        with self._machine.launching():
            stream = self._model.hidden(self._put(token_ids), self._positions, (self._group,))
            return on_host(self._model.logits(stream, None))


def on_host(tensor: Tensor) -> Array:
    """Its values, once they are there."""
    return tensor.array.copy() if isinstance(tensor, SimulatedTensor) else as_array(tensor)

"""Qwen3 from the panel's kernels alone: token ids in, logits of the rows that need them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimized.device import Device, Tensor
from optimized.kernels.embedding import embedding
from optimized.kernels.rms_norm import rms_norm
from optimized.kernels.vocabulary_head import vocabulary_head
from optimized.model.layer import KeysValues, Positions, RowGroup, decoder_layer
from optimized.model.stream import Stream, products_norm
from optimized.model.weights import ModelWeights
from reference.model.config import ModelConfig


@dataclass(frozen=True)
class Model:
    """Weights and KV memory of a model, on a device."""

    device: Device
    config: ModelConfig
    weights: ModelWeights
    kv: Sequence[KeysValues]  # one pair a layer

    def hidden(self, token_ids: Tensor, positions: Positions, groups: tuple[RowGroup, ...]) -> Stream:
        """Every token (i32 [T]) through every layer."""
        stream = Stream(embedding(token_ids, self.weights.embedding), self.config.rms_norm_eps)
        for weights, kv in zip(self.weights.layers, self.kv, strict=True):
            decoder_layer(self.device, weights, self.config, stream, kv, positions, groups)
        return stream

    def logits(self, stream: Stream, tokens: Tensor | None, out: Tensor | None = None) -> Tensor:  # f32 [R, V]
        """tokens: i32 [R], which of the stream's need them; None: all, in order. out: memory for them."""
        x = stream.settled(self.weights.norm)
        if tokens is not None:
            x = embedding(tokens, x)  # a copy of rows is a look-up in a table of them
        norm = {"norm_weight": self.weights.norm, "eps": stream.eps}
        if not products_norm(x):
            x, norm = rms_norm(x, self.weights.norm, stream.eps), {}
        logits = vocabulary_head(x, self.weights.head, **norm, pdl=True, out=(out, None, None)).logits
        assert logits is not None
        return logits

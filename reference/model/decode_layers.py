"""A decode step in as few compiled functions as may be: several layers in one, embedding and logits with them.

To start a compiled function takes some 0.2 ms on two cores, which is as long as a layer of a small model takes for one
row. More layers in one function take longer to compile, so a deep model goes through several such functions; layers
of one shape share their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from reference.formats import Array
from reference.kernels.embedding import embedding
from reference.model.attend_rows import RowGroup, attend_rows
from reference.model.config import ModelConfig
from reference.model.kv_memory import KeysValues, Slots, write
from reference.model.qwen3 import Positions, after_attention, before_attention, logits
from reference.model.weights import Layer, Weights

LAYERS_AT_ONCE = 4


class DecodeRows(NamedTuple):
    """What every layer reads of a batch in which each row has one token."""

    positions: Positions
    slots: Slots
    group: RowGroup  # of all rows
    sampled: Array  # i32 [R], the rows whose logits are asked for


def parts_of(layers: Sequence[Layer]) -> list[range]:
    """Which layers go through a compiled function together."""
    starts = range(0, len(layers), LAYERS_AT_ONCE)
    return [range(start, min(start + LAYERS_AT_ONCE, len(layers))) for start in starts]


def decode_layers(
    layers: Sequence[Layer],
    ends: Weights,  # whose layers are not read
    config: ModelConfig,
    kv: Sequence[KeysValues],  # of these layers
    x: Array,  # [T, H]; i32 [T] token ids before the first layer
    rows: DecodeRows,
    *,
    is_last: bool,  # of the model's layers
) -> tuple[Array, list[KeysValues], Array | None]:  # [T, H], their memory, and after the last f32 [R, V]
    """Some layers of a decode step."""
    if x.ndim == 1:
        x = embedding(jnp.maximum(x, 0), ends.embedding)
    written = []
    for layer, memory in zip(layers, kv, strict=True):
        q, k, v = before_attention(layer, config, x, rows.positions)
        written.append(write(k, v, memory, rows.slots))
        attended = attend_rows(q, written[-1], rows.group, jnp.zeros_like(q), 1)
        x = after_attention(layer, config, x, attended)
    return x, written, logits(ends, config, x[rows.sampled]) if is_last else None

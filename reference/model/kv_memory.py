"""KV memory that is updated in place under JAX.

`kv_write` gives new caches, and XLA copies a whole cache to make one, unless all it does is to scatter into an array
that is donated to it. Numbers of 16 bits are held as the bits they are: XLA on a CPU scatters bfloat16 by way of
float32, again through the whole cache. What is written is the same, bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from reference.formats import Array
from reference.model.padding import padded

KeysValues = tuple[Array, Array]  # each [num_blocks, Nkv, block_size, D], in `storage_dtype`
SMALL = 64  # tokens: in a batch of more, every fourth may open a block at no cost


class Slots(NamedTuple):
    """Where the tokens of a batch are written."""

    of_tokens: Array  # i32 [T], each at most once; -1 writes nothing
    opened: Array  # i32 [O]: blocks whose first slot is among them; -1 pads


def padded_slots(slot_mapping: np.ndarray, num_tokens: int, block_size: int, *, all_may_open: bool = False) -> Slots:
    """The slots of a batch, padded to a number of tokens. XLA spreads out the zeros for all opened blocks that there
    could be, so of many tokens not every one is allowed for, unless more do open one. all_may_open: every one is, so
    that there is one shape: samples of one prompt open their blocks all in one step."""
    first = slot_mapping[(slot_mapping >= 0) & (slot_mapping % block_size == 0)]
    few = num_tokens if all_may_open or num_tokens <= SMALL else num_tokens // 4
    num_opened = few if len(first) <= few else num_tokens
    return Slots(
        padded(slot_mapping.astype(np.int32), num_tokens, -1),
        padded((first // block_size).astype(np.int32), num_opened, -1),
    )


def storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint16) if dtype.itemsize == 2 else dtype


def values_of(memory: KeysValues, dtype: np.dtype[Any]) -> KeysValues:
    """Keys and values as numbers of the model's dtype."""
    keys, values = memory
    if keys.dtype == dtype:
        return memory
    return jax.lax.bitcast_convert_type(keys, dtype), jax.lax.bitcast_convert_type(values, dtype)


def write(
    k: Array,  # [T, Nkv, D]
    v: Array,  # [T, Nkv, D]
    memory: KeysValues,
    slots: Slots,
) -> KeysValues:
    """`kv_write` of keys and values that have the memory's dtype."""
    num_blocks, _, block_size, _ = memory[0].shape
    block, offset = slots.of_tokens // block_size, slots.of_tokens % block_size
    block, opened = (jnp.where(index < 0, num_blocks, index) for index in (block, slots.opened))  # "drop" leaves it out

    def written(rows: Array, cache: Array) -> Array:
        bits = rows if rows.dtype == cache.dtype else jax.lax.bitcast_convert_type(rows, cache.dtype)
        blank = cache.at[opened].set(jnp.zeros((), cache.dtype), mode="drop")
        return blank.at[block, :, offset].set(bits, mode="drop")

    return written(k, memory[0]), written(v, memory[1])

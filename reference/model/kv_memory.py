"""KV memory that is updated in place under JAX.

`kv_write` gives new caches, and XLA copies a whole cache to make one, unless all it does is to scatter into an array
that is donated to it. Numbers of 16 bits are held as the bits they are: XLA on a CPU scatters bfloat16 by way of
float32, again through the whole cache. What is written is the same, bit for bit.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reference.formats import Array

KeysValues = tuple[Array, Array]  # each [num_blocks, Nkv, block_size, D], in `storage_dtype`


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
    slots: Array,  # i32 [T], -1 writes nothing; each slot at most once
) -> KeysValues:
    """`kv_write` of keys and values that have the memory's dtype."""
    num_blocks, _, block_size, _ = memory[0].shape
    block = jnp.where(slots >= 0, slots // block_size, num_blocks)  # one too many: "drop" leaves it out
    offset = slots % block_size
    opened = jnp.where(offset == 0, block, num_blocks)

    def written(rows: Array, cache: Array) -> Array:
        bits = rows if rows.dtype == cache.dtype else jax.lax.bitcast_convert_type(rows, cache.dtype)
        blank = cache.at[opened].set(jnp.zeros((), cache.dtype), mode="drop")
        return blank.at[block, :, offset].set(bits, mode="drop")

    return written(k, memory[0]), written(v, memory[1])

"""Writing keys and values into a paged KV cache.

    k_cache[slot // bs, :, slot % bs, :] = k[t]      for each token t, slot = slot_mapping[t]; v alike

A cache has B blocks of bs tokens, heads leading: [B, Nkv, bs, D]. A token at offset 0 OPENS its block: the rest of the
block becomes 0 (except where a token of the same call lands). So a block never holds what an earlier owner, or no
one, left in it, and a tail beyond a sequence's end is 0 and not NaN. Everything else stays as it is, bit for bit.

slot -1 writes nothing. If two tokens name one slot, the later one stays; an engine never does that.

Written as a gather, for each slot the token that it receives: then nothing has to be scattered to a slot of -1,
which array libraries take for the last one.

Rounding: none when k has the cache's dtype; otherwise once, to the cache's dtype.
Source: arXiv:2309.06180 (paging), and the layout of `reference.formats.KV_LAYOUT`.
"""

from __future__ import annotations

import array_api_extra as xpx

from reference.formats import Array


def kv_write(
    k: Array,  # [T, Nkv, D]
    v: Array,  # [T, Nkv, D]
    k_cache: Array,  # [B, Nkv, bs, D]
    v_cache: Array,  # [B, Nkv, bs, D]
    slot_mapping: Array,  # i32 or i64 [T]: block * bs + offset, or -1
) -> tuple[Array, Array]:  # (k_cache, v_cache), new arrays; the inputs stay as they are
    """The caches after T tokens were written."""
    xp = k_cache.__array_namespace__()
    num_blocks, _, block_size, _ = k_cache.shape
    num_slots = num_blocks * block_size
    writes = slot_mapping >= 0

    # source[slot] = 1 + the token that the slot receives, or 0. Slots and blocks have one row too many: -1 lands there.
    slot = xp.where(writes, slot_mapping, num_slots)
    source = xp.zeros(num_slots + 1, dtype=xp.int32)
    source = xpx.at(source, slot).max(xp.arange(1, slot_mapping.shape[0] + 1, dtype=xp.int32))
    source = xp.reshape(source[:num_slots], (num_blocks, block_size))

    opened_block = xp.where(writes & (slot_mapping % block_size == 0), slot_mapping // block_size, num_blocks)
    opened = xpx.at(xp.zeros(num_blocks + 1, dtype=xp.bool), opened_block).set(True)[:num_blocks]
    keep = ((source == 0) & ~opened[:, None])[:, None, :, None]  # [B, 1, bs, 1]

    def written(tokens: Array, cache: Array) -> Array:
        rows = xp.astype(tokens, cache.dtype)
        nothing = xp.zeros((1, *rows.shape[1:]), dtype=rows.dtype)  # row 0: what is in an opened block's other slots
        fresh = xp.concat([nothing, rows], axis=0)[source]  # [B, bs, Nkv, D]
        return xp.where(keep, cache, xp.permute_dims(fresh, (0, 2, 1, 3)))

    return written(k, k_cache), written(v, v_cache)

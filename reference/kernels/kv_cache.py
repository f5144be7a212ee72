"""Writing keys and values into a paged KV cache.

    k_cache[slot // bs, :, slot % bs, :] = k[t]      for each token t, slot = slot_mapping[t]; v alike

A cache has B blocks of bs tokens, heads leading: [B, Nkv, bs, D]. A token at offset 0 OPENS its block: the rest of the
block becomes 0 (except where a token of the same call lands). So a block never holds what an earlier owner, or no
one, left in it, and a tail beyond a sequence's end is 0 and not NaN. Everything else stays as it is, bit for bit.

slot -1 writes nothing. If two tokens name one slot, the later one stays; an engine never does that.

Written as a scatter of the tokens, so that what is moved is the tokens and not the cache. Array libraries leave open
which of two writes to one place stays, and take an index of -1 for the last place. So all tokens of a slot write the
last one's values; and a token that writes nothing repeats what another one writes, the same values to the same place.
Where no token writes anything, all repeat what is there already.

Rounding: none when k has the cache's dtype; otherwise once, to the cache's dtype.
Source: arXiv:2309.06180 (paging), and the layout of `reference.formats.KV_LAYOUT`.
"""

from __future__ import annotations

from array_api_extra import at

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
    if slot_mapping.shape[0] == 0:
        return xp.asarray(k_cache, copy=True), xp.asarray(v_cache, copy=True)
    num_tokens, (num_blocks, _, block_size, _) = slot_mapping.shape[0], k_cache.shape
    token = xp.arange(num_tokens, dtype=xp.int32)
    writes = slot_mapping >= 0
    opens = writes & (slot_mapping % block_size == 0)
    # The token in whose place each token writes, or opens: the last of its slot; if it has none, that of the first.
    padded_slot = xp.where(writes, slot_mapping, num_blocks * block_size)
    last = at(xp.full(num_blocks * block_size + 1, -1, dtype=xp.int32), padded_slot).max(token)
    writer = last[padded_slot[xp.where(writes, token, xp.argmax(writes))]]
    opener = xp.where(opens, token, xp.argmax(opens))
    slot = xp.where(xp.any(writes), slot_mapping[writer], 0)
    opened = xp.where(xp.any(opens), slot_mapping[opener] // block_size, 0)
    block, offset = slot // block_size, slot % block_size

    def written(tokens: Array, cache: Array) -> Array:
        blank = xp.where(xp.any(opens), xp.zeros((), dtype=cache.dtype), cache[opened[0]])  # [Nkv, bs, D]
        rows = xp.where(xp.any(writes), xp.astype(tokens[writer], cache.dtype), cache[0, :, 0])  # [T, Nkv, D]
        return at(at(cache, opened).set(blank, copy=True), (block, slice(None), offset)).set(rows)

    return written(k, k_cache), written(v, v_cache)

"""Copying whole blocks within a paged KV cache: the start of a prefix that two sequences go on from apart.

    k_cache[destination] = k_cache[source]      for each pair (source, destination); v alike

A pair with -1 in it is padding and copies nothing. Every block that is no destination stays as it is.

Precondition: a destination occurs once, and is no source of the same call. This text still says what it does
otherwise, so that an error is reproducible: every source is read before anything is written, and of two pairs with one
destination the later one stays. The optimized panel promises nothing of the kind.

Written as a gather, for each block the one that it receives: then nothing has to be scattered to block -1.

Rounding: none, blocks are copied bit for bit.
Source: copy on write of shared blocks, arXiv:2309.06180, section 4.4; the layout of `reference.formats.KV_LAYOUT`.
"""

from __future__ import annotations

import array_api_extra as xpx

from reference.formats import Array


def kv_block_copy(
    k_cache: Array,  # [B, Nkv, bs, D]
    v_cache: Array,  # [B, Nkv, bs, D]
    pairs: Array,  # i32 [N, 2]: source, destination
) -> tuple[Array, Array]:  # (k_cache, v_cache), new arrays; the inputs stay as they are
    """The caches after N blocks were copied."""
    xp = k_cache.__array_namespace__()
    num_blocks = k_cache.shape[0]
    source, destination = pairs[:, 0], pairs[:, 1]
    copies = (source >= 0) & (destination >= 0)

    # pair[block] = 1 + the pair that the block is the destination of, or 0. There is one row too many: padding lands
    # there.
    row = xp.where(copies, destination, num_blocks)
    pair = xp.zeros(num_blocks + 1, dtype=xp.int32)
    pair = xpx.at(pair, row).max(xp.arange(1, pairs.shape[0] + 1, dtype=xp.int32))[:num_blocks]
    none = xp.zeros(1, dtype=source.dtype)
    origin = xp.where(pair > 0, xp.concat([none, source])[pair], xp.arange(num_blocks, dtype=source.dtype))
    return xp.take(k_cache, origin, axis=0), xp.take(v_cache, origin, axis=0)

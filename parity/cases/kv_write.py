"""kv_write: decode, chunks of prompts, and any mapping that names no slot twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal, side_by_side, strided
from parity.shape import BLOCK_SIZE, MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {
    "mapping": "chunks",
    "tokens": 37,
    "blocks": 12,
    "heads": 4,
    "block_size": 16,
    "head_dim": 128,
    "dtype": "bfloat16",
    "cache_dtype": "",
    "token_stride": 0,
    "block_stride": 0,
}
DECODE = {"mapping": "decode", "block_size": 128}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            yield BASE | DECODE | {"tokens": 8, "head_dim": head_dim, "dtype": dtype}
            yield BASE | {"tokens": 1100, "blocks": 100, "heads": 8, "head_dim": head_dim, "dtype": dtype}
        for mapping in ("steady", "whole", "scattered", "openers", "padding"):
            yield BASE | {"mapping": mapping, "dtype": dtype}
        yield BASE | DECODE | {"tokens": 1, "blocks": 2, "dtype": dtype}
        yield BASE | {"tokens": 0, "dtype": dtype}
        yield BASE | {"tokens": 65, "dtype": dtype, "token_stride": 6144}
        yield BASE | {"tokens": 65, "dtype": dtype, "token_stride": 5121}
        yield BASE | {"tokens": 65, "heads": 1, "dtype": dtype, "block_size": 24, "head_dim": 72}
    # A block of threads of each size, few openers and many.
    for tokens in (70, 140, 280, 600, 1300):
        yield BASE | {"tokens": tokens, "blocks": 20, "heads": 8, "block_size": 128}
        yield BASE | {"mapping": "scattered", "tokens": tokens, "blocks": 100, "heads": 8}
    yield BASE | {"mapping": "openers", "tokens": 600, "blocks": 600, "heads": 8}
    yield BASE | {"mapping": "whole", "tokens": 2500, "blocks": 25, "heads": 8, "block_size": 128}
    yield BASE | {"tokens": 3000, "blocks": 30, "heads": 8, "block_size": 128, "token_stride": 6144}
    # Of k and v, and of their caches, each with strides of its own.
    for mapping in ("decode", "chunks"):
        yield BASE | {"mapping": mapping, "v_stride": 1024}
        yield BASE | {"mapping": mapping, "v_stride": 515}
        yield BASE | {"mapping": mapping, "v_block_stride": 4 * 16 * 128 + 8}
    yield BASE | {"block_size": 1, "blocks": 100}
    yield BASE | {"block_size": 7, "head_dim": 5}
    yield BASE | {"block_size": 256, "blocks": 3, "heads": 1}
    yield BASE | {"dtype": "float32", "cache_dtype": "bfloat16"}
    yield BASE | {"dtype": "float32", "cache_dtype": "float16", "mapping": "scattered"}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"k": 1}, {"v": 1}, {"k_cache": 1}, {"v_cache": 1}, {"slot_mapping": 1}):
        yield BASE | {"offset": offset}
    yield BASE | DECODE | {"offset": 1}
    # More than 2^31 elements to the last block.
    yield BASE | {"blocks": 520, "heads": 1, "head_dim": 64, "block_stride": 1 << 22, "mapping": "scattered"}


space = st.fixed_dictionaries(
    {
        "mapping": st.sampled_from(["decode", "steady", "chunks", "whole", "scattered", "openers", "padding"]),
        "tokens": st.integers(0, 120),
        "blocks": st.integers(1, 24),
        "heads": st.sampled_from([1, 2, 8]),
        "block_size": st.sampled_from([5, 16, 32, 128]),
        "head_dim": st.sampled_from([64, 128, 256]),
        "dtype": st.sampled_from(DTYPES),
        "cache_dtype": st.just(""),
        "token_stride": st.just(0),
        "block_stride": st.just(0),
    }
)


def slots(random: np.random.Generator, mapping: str, tokens: int, blocks: int, block_size: int) -> Array:
    """i64 [tokens]: no slot twice, -1 for every token that has no room left.

    "decode": one token in a block, at any offset, the first ones at 0. "openers": all at offset 0. "steady": all in the
    middle of a block. "chunks": parts of prompts, each consecutive, that begin and end within blocks, in blocks of any
    order. "whole": one prompt from slot 0 of its first block. "scattered": slots in any order, so that an opener may
    come last. "padding": nothing.
    """
    chosen = np.full(tokens, -1, np.int64)
    order = random.permutation(blocks)
    if mapping in ("decode", "openers", "steady"):
        count = min(tokens, blocks)
        offsets = random.integers(0, block_size, count)
        if mapping == "steady":
            offsets[:] = block_size // 2
        else:
            offsets[: count if mapping == "openers" else count // 3] = 0
        chosen[:count] = order[:count] * block_size + offsets
    elif mapping == "scattered":
        # Few blocks, so that most that are opened also receive others; the last one, which is the farthest, among them.
        few = np.union1d(order[: max(1, tokens // 8)], [blocks - 1])
        all_slots = random.permutation((few[:, None] * block_size + np.arange(block_size)).ravel())
        chosen[: len(all_slots)] = all_slots[:tokens]
    elif mapping in ("chunks", "whole"):
        in_order = (order[:, None] * block_size + np.arange(block_size)).ravel()
        start = 0 if mapping == "whole" else int(random.integers(0, block_size))
        token = 0
        while token < tokens and start < len(in_order):
            length = tokens if mapping == "whole" else int(random.integers(1, 3 * block_size + 2))
            part = in_order[start : start + min(length, tokens - token)]
            chosen[token : token + len(part)] = part
            token += len(part)
            # The next sequence begins in a block that this one has not, anywhere in it; one slot in ten is padding.
            end = start + len(part)
            start = -(-end // block_size) * block_size + int(random.integers(0, block_size)) * int(
                random.integers(0, 2)
            )
            token += int(random.random() < 0.1)
    elif mapping != "padding":
        raise ValueError(f"unknown mapping {mapping!r}")
    return chosen


def cache(random: np.random.Generator, config: Config, dtype: Any) -> Array:
    """Blocks [B, Nkv, bs, D] of numbers, with NaN in every fifth slot: what an earlier owner left."""
    shape = config["blocks"], config["heads"], config["block_size"], config["head_dim"]
    values = normal(random, *shape, dtype=dtype)
    values[:, :, ::5] = np.nan
    if not config["block_stride"]:
        return values
    size = values.dtype.itemsize
    memory = np.zeros((config["blocks"] - 1) * config["block_stride"] + values[0].size, values.dtype)
    strides = config["block_stride"] * size, *values.strides[1:]
    apart = np.lib.stride_tricks.as_strided(memory, shape, strides)
    apart[:] = values
    return apart


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, dtype = config["tokens"], config["dtype"]
    k, v = (normal(random, tokens, config["heads"], config["head_dim"], dtype=dtype) for _ in range(2))
    if config["token_stride"]:
        k, v = side_by_side([k, v], config["token_stride"])
    if "v_stride" in config:
        v = strided(v, config["v_stride"])
    of_v = {**config, "block_stride": config.get("v_block_stride", config["block_stride"])}
    k_cache, v_cache = (cache(random, one, config["cache_dtype"] or dtype) for one in (config, of_v))
    slot_mapping = slots(random, config["mapping"], tokens, config["blocks"], config["block_size"])
    return Call({"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slot_mapping": slot_mapping})


def of_model(shape: Shape, tokens: int) -> Config:
    is_decode = tokens <= MOST_DECODES
    blocks = {
        "mapping": "steady" if is_decode else "whole",
        "blocks": tokens if is_decode else -(-tokens // BLOCK_SIZE),
        "block_size": BLOCK_SIZE,
    }
    sizes = {"heads": shape.kv_heads, "head_dim": shape.head_dim, "token_stride": shape.token_stride}
    return BASE | blocks | sizes | {"tokens": tokens}


def bytes_moved(config: Config) -> int:
    """Without what is cleared."""
    size = format_named(config["dtype"]).dtype.itemsize
    cache_size = format_named(config["cache_dtype"] or config["dtype"]).dtype.itemsize
    return config["tokens"] * (2 * config["heads"] * config["head_dim"] * (size + cache_size) + 8)


TWIN = Twin(
    "kv_write",
    (Output("k_cache", exact=True, in_place="k_cache"), Output("v_cache", exact=True, in_place="v_cache")),
    corners,
    space,
    inputs,
    reference="reference.kernels.kv_cache:kv_write",
    bytes_moved=bytes_moved,
    of_model=of_model,
)

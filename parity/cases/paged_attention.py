"""paged_attention: decode steps, and a few queries a request, over caches that are NaN wherever nothing is owned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.inputs import far_apart, normal, strided
from parity.shape import BLOCK_SIZE, MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import paged_attention as panel

DTYPES = ("bfloat16", "float16")
CONTEXT = 1152  # keys of each request that the benchmark has
ARRAYS = ("q", "k_cache", "v_cache", "block_table", "query_start", "seq_lens")
# "equal": all keys are, so that all weights are. "huge": scores of some hundreds. "nan": some values of the second
# request; "nan_keys": some of its keys. "zeros": q, so that the mean of the values comes out. "sink": the first key
# takes most of the weight and has no value, as in trained models, so that the result is made of weights that are tiny.
KINDS = ("normal", "equal", "huge", "nan", "nan_keys", "zeros", "sink")
BASE: dict[str, Any] = {
    "requests": 3,
    "lengths": [150, 37, 290],  # keys of each request; over and over, if there are more requests
    "queries": [1],  # likewise
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "block_size": 16,
    "dtype": "bfloat16",
    "kind": "normal",
}
# Around a chunk of 16 keys and a split of 256.
LENGTHS = [1, 15, 16, 17, 255, 256, 257, 300, 512, 513, 1025]
LARGE = {"requests": 2, "lengths": [2100, 140], "block_size": 128}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            yield BASE | {"dtype": dtype, "head_dim": head_dim}
        for kind in KINDS:
            yield BASE | {"dtype": dtype, "kind": kind}
        for queries in ([2], [4, 3, 1], [8, 5, 7], [1, 0, 2]):
            yield BASE | {"dtype": dtype, "queries": queries}
        yield BASE | {"dtype": dtype, "requests": 11, "lengths": LENGTHS, "kv_heads": 1}
        yield BASE | {"dtype": dtype, **LARGE}
        yield BASE | {"dtype": dtype, "token_stride": 512}
        yield BASE | {"dtype": dtype, "pdl": True, "queries": [1, 3, 2]}
    # The models' heads, whole and a rank's share.
    for heads, kv_heads in (
        (16, 8),
        (32, 8),
        (40, 8),
        (64, 8),
        (32, 4),
        (64, 4),
        (8, 1),
        (4, 1),
        (16, 1),
        (1, 1),
        (5, 1),
    ):
        yield BASE | {"heads": heads, "kv_heads": kv_heads, "head_dim": 128}
    # Several tiles of rows, and several passes.
    for heads, queries in ((5, [8]), (8, [4]), (8, [8, 3]), (16, [2]), (16, [8, 1, 5])):
        yield BASE | {"heads": heads, "kv_heads": 1, "queries": queries, "head_dim": 128}
        yield BASE | {"heads": heads, "kv_heads": 1, "queries": queries, "head_dim": 256, "dtype": "float16"}
    for block_size in (16, 32, 48, 64, 128):
        yield BASE | {"block_size": block_size, "requests": 5, "lengths": [1, 129, 16, 400, 63]}
    # Requests without keys, without queries, and both; more tables than needed; tokens that are no request's.
    yield BASE | {"requests": 5, "lengths": [0, 200, 0, 31, 0], "queries": [1, 1, 0, 0, 3]}
    yield BASE | {"requests": 4, "lengths": [0], "queries": [1]}
    yield BASE | {"requests": 4, "lengths": [3], "queries": [0]}
    yield BASE | {"requests": 0}
    yield BASE | {"requests": 0, "more_tokens": 3}
    yield BASE | {"lengths": [2, 1, 5], "queries": [4]}  # queries that see no key
    yield BASE | {"lengths": [5, 16, 3], "block_size": 128}
    yield BASE | {"more_blocks": 70}
    yield BASE | {"more_tokens": 5}
    yield BASE | {"shared": True}
    yield BASE | {"scale": 1.0}
    yield BASE | {"scale": 0.01}
    yield BASE | {"requests": 150, "lengths": [3, 0, 20, 140], "kv_heads": 1}
    # Programmatic dependent launch: new keys in the first chunk of a run and behind it, idle blocks, no barrier.
    yield BASE | {"requests": 11, "lengths": LENGTHS, "kv_heads": 1, "queries": [8, 1, 2], "pdl": True}
    yield BASE | {"requests": 5, "lengths": [0, 200, 0, 31, 0], "queries": [1, 1, 0, 0, 3], "pdl": True}
    yield BASE | {"requests": 2, "lengths": [140, 17], "more_tokens": 3, "pdl": True}
    yield BASE | {"head_dim": 256, "pdl": True}
    yield BASE | {"requests": 1, "lengths": [9000], "block_size": 128}
    # Around and at the end of a span of 16 splits.
    yield BASE | {"requests": 4, "lengths": [4096, 8192, 4095, 4097], "kv_heads": 1, "block_size": 128}
    yield BASE | {"requests": 4, "lengths": [3, 20000, 1, 130], "kv_heads": 1, "block_size": 128}
    yield BASE | {
        "requests": 40,
        "lengths": [1152, 700],
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "block_size": 128,
    }
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, *({name: 1} for name in (*ARRAYS, "out"))):
        yield BASE | {"offset": offset}
    for stride in (257, 512):
        yield BASE | {"token_stride": stride, "out_stride": stride}
    yield BASE | {"gap": 40}
    yield BASE | {"gap": 4, "v_gap": 16}
    # More than 2^31 elements to the last block.
    yield BASE | {"gap": 1 << 26}
    yield BASE | {"gap": 0, "v_gap": 1 << 26, "queries": [3]}


space = st.fixed_dictionaries(
    {
        "requests": st.integers(1, 12),
        "lengths": st.lists(st.integers(0, 400), min_size=1, max_size=12),
        "queries": st.lists(st.integers(0, 8), min_size=1, max_size=4),
        "heads": st.sampled_from([4, 8]),
        "kv_heads": st.sampled_from([1, 2]),
        "head_dim": st.sampled_from([64, 128, 256]),
        "block_size": st.sampled_from([16, 32, 64, 128]),
        "dtype": st.sampled_from(DTYPES),
        "kind": st.sampled_from(["normal", "nan"]),
    }
)


def lengths_of(config: Config) -> Array:
    return np.resize(np.array(config["lengths"], np.int32), config["requests"])


def queries_of(config: Config) -> Array:
    return np.resize(np.array(config["queries"], np.int32), config["requests"])


def tables(config: Config, random: np.random.Generator) -> tuple[Array, int]:
    """(block_table, blocks of the caches): blocks in any order, three of them nobody's."""
    counts = -(-lengths_of(config) // config["block_size"])
    num_blocks = int(counts.sum()) + 3
    free = random.permutation(num_blocks).astype(np.int32)
    table = np.full(
        (config["requests"], max(1, int(counts.max(initial=0))) + config.get("more_blocks", 1)), -1, np.int32
    )
    for request, count in enumerate(counts):
        table[request, :count], free = free[:count], free[count:]
    if config.get("shared"):
        table[1, 0] = table[0, 0]
    return table, num_blocks


def cache(config: Config, table: Array, num_blocks: int, gap: int, random: np.random.Generator) -> Array:
    """[B, Nkv, bs, D]: NaN, and numbers where a request has its keys."""
    block_size = config["block_size"]
    shape = config["kv_heads"], block_size, config["head_dim"]
    values = normal(random, num_blocks, *shape, dtype=config["dtype"])
    is_owned = np.zeros((num_blocks, block_size), bool)
    for blocks, length in zip(table, lengths_of(config), strict=True):
        owned = np.arange(-(-length // block_size) * block_size) < length
        is_owned[blocks[: len(owned) // block_size]] |= owned.reshape(-1, block_size)
    values[~np.broadcast_to(is_owned[:, None], values.shape[:3])] = np.nan
    return far_apart(values, int(np.prod(shape)) + gap) if gap else values


def inputs(config: Config, random: np.random.Generator) -> Call:
    kind, lengths, queries = config["kind"], lengths_of(config), queries_of(config)
    query_start = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    num_tokens = int(query_start[-1]) + config.get("more_tokens", 0)
    table, num_blocks = tables(config, random)
    q = normal(random, num_tokens, config["heads"], config["head_dim"], dtype=config["dtype"])
    k_cache = cache(config, table, num_blocks, config.get("gap", 0), random)
    v_cache = cache(config, table, num_blocks, config.get("v_gap", config.get("gap", 0)), random)
    if kind == "equal":
        k_cache[np.isfinite(k_cache)] = 0.75
    elif kind == "huge":
        q = (q.astype(np.float32) * 100).astype(q.dtype)
    elif kind == "zeros":
        q = np.zeros_like(q)
    elif kind == "sink":
        q = np.abs(q)
        first = table[lengths > 0, 0]
        k_cache[first, :, 0], v_cache[first, :, 0] = 1.75, 0
    elif kind == "nan" and config["requests"] > 1 and lengths[1]:
        v_cache[table[1, 0], :, 0, ::3] = np.nan
    elif kind == "nan_keys" and config["requests"] > 1 and lengths[1]:
        k_cache[table[1, 0], 0, 0, ::3] = np.nan
    elif kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    if "token_stride" in config:
        q = strided(q, config["token_stride"])
    arrays = dict(zip(ARRAYS, (q, k_cache, v_cache, table, query_start, lengths), strict=True))
    constants: dict[str, Any] = {"max_query_len": int(queries.max(initial=0))}
    constants |= {name: config[name] for name in ("scale", "pdl") if name in config}
    return Call(arrays, constants)


def reference(*arrays: Array, max_query_len: int, scale: float | None = None, pdl: bool = False) -> Array:
    """Whatever the launch."""
    return panel.paged_attention(*arrays, max_query_len=max_query_len, scale=scale)


def of_model(shape: Shape, tokens: int) -> Config | None:
    """A decode step; a prompt's attention is another operation's."""
    if tokens > MOST_DECODES:
        return None
    sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "block_size": BLOCK_SIZE}
    return BASE | sizes | {"requests": tokens, "lengths": [CONTEXT]}


def bytes_moved(config: Config) -> int:
    """Keys and values as often as requests have them, and all of the tables."""
    size = format_named(config["dtype"]).dtype.itemsize
    lengths, block_size = lengths_of(config), config["block_size"]
    keys = 2 * int(lengths.sum()) * config["kv_heads"] * config["head_dim"] * size
    tokens = int(queries_of(config).sum()) + config.get("more_tokens", 0)
    width = max(1, int((-(-lengths // block_size)).max(initial=0))) + config.get("more_blocks", 1)
    numbers = len(lengths) * (width + 1) + len(lengths) + 1
    return keys + 2 * tokens * config["heads"] * config["head_dim"] * size + 4 * numbers


# In ULPs of float32: a probability of bfloat16's two parts is off by up to 2^-17, which is 64 of them.
TWIN = Twin(
    "paged_attention",
    (Output("out", floor=128.0, row_share=1.0),),
    corners,
    space,
    inputs,
    reference="parity.cases.paged_attention:reference",
    bytes_moved=bytes_moved,
    of_model=of_model,
    # Two tiles of queries with 128 channels spill on Blackwell, up to 144 bytes, and nothing else does: the kernel's
    # own tests hold Hopper, and 256 channels, to none.
    local_bytes={"PagedAttention": 144},
)

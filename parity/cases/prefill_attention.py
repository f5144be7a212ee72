"""prefill_attention: prompts, chunks of them, and mixtures of both, in blocks of any size, among NaN of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.libraries import FLASH_ATTENTION, QUACK, missing
from parity.inputs import far_apart, normal, strided
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import paged_attention as panel

DTYPES = ("bfloat16", "float16")
BASE: dict[str, Any] = {
    "requests": [[37, 37], [1, 150], [70, 133]],  # of each: queries, and keys with those of its queries
    "rest": 0,  # rows of q that are no request's
    "heads": 4,
    "kv_heads": 2,  # so that it shows which of them a head has
    "head_dim": 64,
    "block_size": 128,
    "dtype": "bfloat16",
    "token_stride": 0,
    "block_stride": 0,
    "choice": None,
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            for block_size in (16, 128):
                yield BASE | {"head_dim": head_dim, "block_size": block_size, "dtype": dtype}
        yield BASE | {"token_stride": 1536, "dtype": dtype}
        yield BASE | {"scale": 0.5, "dtype": dtype}
        yield BASE | {"values": "large", "dtype": dtype}
        yield BASE | {"values": "positive", "dtype": dtype}
    # Chunks that begin and end at and around the tiles of queries and of keys.
    for queries, keys in ((128, 128), (128, 256), (127, 255), (129, 257), (1, 1), (1, 129), (2, 384), (300, 300)):
        for head_dim in (64, 128):
            yield BASE | {"requests": [[queries, keys]], "head_dim": head_dim}
    for head_dim, block_size in ((64, 32), (128, 64), (256, 64), (128, 48), (256, 80)):
        yield BASE | {"head_dim": head_dim, "block_size": block_size}
    for heads, kv_heads in ((1, 1), (3, 3), (8, 1), (16, 2), (5, 1), (14, 2)):
        for choice in ("flash packed", "flash by head"):
            yield BASE | {"heads": heads, "kv_heads": kv_heads, "choice": choice}
    for rest in (1, 40):
        yield BASE | {"rest": rest}
    # Requests without queries, without keys, and none.
    yield BASE | {"requests": [[0, 50], [33, 80], [0, 0], [5, 5]]}
    yield BASE | {"requests": [[0, 0]], "rest": 9}
    yield BASE | {"requests": [], "rest": 9}
    yield BASE | {"requests": [[1 + 7 * number, 20 + 11 * number] for number in range(40)]}
    # As large as chunks are, which a chip takes.
    for head_dim in (64, 128, 256):
        config = {"head_dim": head_dim, "heads": 16, "kv_heads": 4}
        yield BASE | config | {"requests": [[1024, 3000], [700, 700], [256, 4096]]}
    # Tensors that begin behind what memory is aligned to: all, and each alone.
    for offset in (8, {"q": 8}, {"k_cache": 8}, {"v_cache": 8}, {"out": 8}, {"block_table": 1}, {"seq_lens": 1}):
        yield BASE | {"offset": offset}
    yield BASE | {"offset": {"query_start": 1}}
    yield BASE | {"out_stride": 768, "rest": 3}
    yield BASE | {"table_stride": 9}
    # More than 2^31 elements to the last block.
    for block_size in (16, 128):
        yield BASE | {"block_size": block_size, "block_stride": 1 << 28, "blocks": 24}


space = st.fixed_dictionaries(
    {
        "requests": st.lists(
            st.tuples(st.integers(0, 150), st.integers(0, 150)).map(lambda pair: [pair[0], sum(pair)]), max_size=5
        ),
        "rest": st.integers(0, 3),
        "heads": st.sampled_from([4, 8]),
        "kv_heads": st.sampled_from([1, 2, 4]),
        "head_dim": st.sampled_from([64, 128, 256]),
        "block_size": st.sampled_from([16, 64, 128]),
        "dtype": st.sampled_from(DTYPES),
        "token_stride": st.just(0),
        "block_stride": st.just(0),
        "choice": st.none(),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    """Blocks in any order. Those of nobody hold NaN; slots of a request's last block behind its last key hold large
    numbers, which a stale key may be; entries of the table that nobody needs are -1."""
    pairs = np.array(config["requests"], np.int64).reshape(-1, 2)
    queries, keys = pairs[:, 0], pairs[:, 1]
    block_size, dtype = config["block_size"], config["dtype"]
    needed = -(-keys // block_size)
    num_blocks = config.get("blocks", int(needed.sum()) + 3)
    order = random.permutation(num_blocks)
    if "blocks" in config:  # the farthest is somebody's
        order = np.roll(order, -int(np.flatnonzero(order == num_blocks - 1)[0]))
    most = max(1, int(needed.max(initial=0)))
    table = np.full((len(pairs), most), -1, np.int32)
    for request, first in enumerate(np.cumsum(needed) - needed):
        table[request, : needed[request]] = order[first : first + needed[request]]
    k_cache, v_cache = (_cache(config, random, num_blocks, table, keys, kind) for kind in ("k", "v"))
    num_tokens = int(queries.sum()) + config["rest"]
    q = normal(random, num_tokens, config["heads"], config["head_dim"], dtype=dtype)
    if config.get("values") == "large":  # a few keys take it all
        q = (q.astype(np.float32) * 8).astype(q.dtype)
    if config.get("values") == "positive":  # terms do not cancel, so that what all of them have wrong shows
        v_cache = np.abs(v_cache)
    if config["token_stride"]:
        q = strided(q, config["token_stride"])
    arrays = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": far_apart(table, config["table_stride"]) if "table_stride" in config else table,
        "query_start": np.array([0, *np.cumsum(queries)], np.int32),
        "seq_lens": keys.astype(np.int32),
    }
    return Call(arrays, {"scale": config.get("scale"), "choice": config["choice"]})


def _cache(config: Config, random: np.random.Generator, num_blocks: int, table: Array, keys: Array, kind: str) -> Array:
    shape = num_blocks, config["kv_heads"], config["block_size"], config["head_dim"]
    owned = np.zeros((num_blocks, config["block_size"]), bool)
    filled = np.zeros((num_blocks, config["block_size"]), bool)
    for blocks, length in zip(table, keys, strict=True):
        count = -(-int(length) // config["block_size"])
        owned[blocks[:count]] = True
        for number, block in enumerate(blocks[:count]):
            filled[block, : max(0, int(length) - number * config["block_size"])] = True
    values = normal(random, *shape, dtype=config["dtype"])
    values[~owned.all(axis=1)] = np.nan
    values = np.where((owned & ~filled)[:, None, :, None], np.asarray(1e3, values.dtype), values)
    stride = config["block_stride"]
    if not stride:
        return values
    memory = np.zeros((num_blocks - 1) * stride + values[0].size, values.dtype)
    apart = np.lib.stride_tricks.as_strided(memory, shape, (stride * values.itemsize, *values.strides[1:]))
    apart[:] = values
    return apart


def reference(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_table: Array,
    query_start: Array,
    seq_lens: Array,
    *,
    scale: float | None,
    choice: str | None,
) -> Array:
    """Paged attention; of no requests, 0."""
    if not len(seq_lens):
        return np.zeros_like(q)
    most = int(np.diff(query_start).max(initial=0))
    tensors = q, k_cache, v_cache, block_table, query_start, seq_lens
    return panel.paged_attention(*tensors, max_query_len=most, scale=scale)


def magnitudes(call: Call) -> list[Array]:
    """The root of sum (p v)^2: what errors come to that are each a share of a term, and independent of each other."""
    arrays = {
        name: array.astype(np.float64) if array.dtype.kind != "i" else array for name, array in call.arrays.items()
    }
    if not len(arrays["seq_lens"]):
        return [np.zeros(arrays["q"].shape)]
    return [_root_of_squares(arrays, call.constants["scale"])]


def _root_of_squares(arrays: dict[str, Array], scale: float | None) -> Array:
    """One request after another, in float64."""
    q, k_cache, v_cache = arrays["q"], arrays["k_cache"], arrays["v_cache"]
    found = np.zeros(q.shape)
    head_dim, group = q.shape[-1], q.shape[1] // k_cache.shape[1]
    for blocks, first, end, length in zip(
        arrays["block_table"], arrays["query_start"][:-1], arrays["query_start"][1:], arrays["seq_lens"], strict=True
    ):
        if first == end:
            continue
        used = blocks[: -(-int(length) // k_cache.shape[2])]
        k, v = (_keys_of(cache[used], group)[:, :length] for cache in (k_cache, v_cache))
        scores = q[first:end].transpose(1, 0, 2) @ k.transpose(0, 2, 1) * (scale or head_dim**-0.5)
        hidden = np.arange(length) > (np.arange(length - (end - first), length))[:, None]
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        found[first:end] = np.sqrt(weights**2 @ v**2).transpose(1, 0, 2)
    return found


def _keys_of(blocks: Array, group: int) -> Array:
    """[n, Nkv, bs, D] as [Nq, n bs, D]."""
    _, num_heads, _, head_dim = blocks.shape
    return np.repeat(blocks.transpose(1, 0, 2, 3).reshape(num_heads, -1, head_dim), group, axis=0)


def untried(config: Config, executor: str) -> str | None:
    return missing(FLASH_ATTENTION, QUACK) if config["requests"] else None


def bytes_moved(config: Config) -> int:
    """Queries, keys that are seen and their values, and results."""
    pairs = np.array(config["requests"], np.int64).reshape(-1, 2)
    rows = int(pairs[:, 0].sum()) + config["rest"]
    elements = 2 * rows * config["heads"] + 2 * int(pairs[:, 1].sum()) * config["kv_heads"]
    return elements * config["head_dim"] * format_named(config["dtype"]).dtype.itemsize


# Each probability is rounded to the dtype: off by up to half an ULP, which is a share of 2^-8 of it in bfloat16 and of
# 2^-11 in float16, or 2^15 and 2^12 times 2^-23. Such errors, independent of each other, add up as their squares do.
# They are 0.4 of that in the mean, so three times it is what none of millions of elements comes to.
OUTPUTS = (Output("out", of_magnitude={"bfloat16": 3 * 2.0**15, "float16": 3 * 2.0**12}, rounds_terms=True),)
TWIN = Twin(
    "prefill_attention",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.prefill_attention:reference",
    bytes_moved=bytes_moved,
    magnitudes=magnitudes,
    library=FLASH_ATTENTION,
    untried=untried,
    # Kernels for Blackwell keep what does not fit a thread's registers there.
    local_bytes={"PrefillAttention": 512},
)

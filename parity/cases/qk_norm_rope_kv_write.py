"""qk_norm_rope_kv_write: batches as an engine makes them, into caches whose unowned slots hold NaN.

Tokens of a sequence follow each other, in the order of their slots; "padded" tokens at the end have slot -1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.inputs import angles, far_apart, normal, side_by_side, spoiled, weights
from parity.shape import BLOCK_SIZE, MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named

DTYPES = ("bfloat16", "float16", "float32")
# Tokens of each sequence, of which there are as many as it takes; and where each begins. "decode": one token, at the
# first or the last slot of a block, or anywhere. "steady": one, around the middle of a block. "whole": one sequence of
# all tokens, or of as many as the tables have positions.
KINDS = ("decode", "steady", "prompts", "whole", "continued", "padded", "unwritten")
ARRAYS = ("q", "k", "v", "q_weight", "k_weight", "positions", "cos", "sin", "k_cache", "v_cache", "slot_mapping")
BASE = {
    "tokens": 40,
    "heads": 16,
    "kv_heads": 2,
    "head_dim": 128,
    "block_size": 16,
    "dtype": "bfloat16",
    "slot_dtype": "int64",
    "kind": "prompts",
    "positions": 400,  # of the tables
    "rows": "normal",
    "token_stride": 0,  # of q, k and v in elements; 0: contiguous
    "gap": 0,  # elements between one block of a cache and the next
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            yield BASE | {"tokens": 1, "head_dim": head_dim, "dtype": dtype, "kind": "decode"}
            yield BASE | {"tokens": 77, "head_dim": head_dim, "dtype": dtype}
        for rows in ("nan", "zeros", "tiny"):
            yield BASE | {"dtype": dtype, "rows": rows}
        yield BASE | {"dtype": dtype, "eps": 0.25}
        # Several heads a group.
        yield BASE | {"tokens": 41, "dtype": dtype, "kind": "unwritten", "repeated": 70001}
    for kind in KINDS:
        for tokens in (0, 1, 2, 33, 150):
            yield BASE | {"tokens": tokens, "kind": kind}
    for kind in ("decode", "prompts", "continued"):
        yield BASE | {"tokens": 60, "kind": kind, "block_size": 128, "heads": 32, "kv_heads": 4}
        yield BASE | {"tokens": 50, "kind": kind, "block_size": 1}
        yield BASE | {"tokens": 50, "kind": kind, "block_size": 24, "slot_dtype": "int32"}
    # Enough for several heads a group, and heads that these do not divide.
    yield BASE | {"tokens": 5700, "kind": "prompts", "heads": 15, "kv_heads": 3}
    yield BASE | {"tokens": 5700, "kind": "continued", "heads": 15, "kv_heads": 3, "block_size": 128}
    for heads, kv_heads in ((64, 4), (16, 1), (7, 1), (5, 3), (1, 1)):
        yield BASE | {"tokens": 19, "heads": heads, "kv_heads": kv_heads}
    # Slices of q, k and v side by side; what leaves aligned accesses of one element alone.
    for kind in ("decode", "prompts"):
        yield BASE | {"token_stride": 2560, "kind": kind, "gap": 4096}
        yield BASE | {"token_stride": 2563, "kind": kind, "gap": 7}
        yield BASE | {"token_stride": 2560, "kind": kind, "gap": 4096, "v_gap": 8192}
        yield BASE | {"kind": kind, "v_gap": 3}
    yield BASE | {"weight_bias": 1.0}
    for dtype, weight_dtype in (("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")):
        yield BASE | {"dtype": dtype, "weight_dtype": weight_dtype}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, *({name: 1} for name in ARRAYS)):
        yield BASE | {"offset": offset}
    for tokens in (1, 133):
        yield BASE | {"tokens": tokens, "launch": {"pdl": True}}
    # More than 2^31 elements to the last block of a cache, and in q.
    yield BASE | {"kind": "decode", "gap": 1 << 26}
    yield BASE | {"tokens": 61, "heads": 32, "kv_heads": 4, "kind": "unwritten", "repeated": 524291}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 200),
        "heads": st.sampled_from([4, 16]),
        "kv_heads": st.sampled_from([1, 2]),
        "head_dim": st.sampled_from([64, 128, 256]),
        "block_size": st.sampled_from([16, 128]),
        "dtype": st.sampled_from(DTYPES),
        "slot_dtype": st.just("int64"),
        "kind": st.sampled_from(KINDS),
        "positions": st.just(400),
        "rows": st.sampled_from(["normal", "nan"]),
        "token_stride": st.sampled_from([0, 5120]),
        "gap": st.just(0),
    }
)


def batch(config: Config, random: np.random.Generator) -> tuple[Array, Array, int]:
    """(positions i32 [T], slot_mapping [T], blocks of the cache): as of sequences that own blocks in random order."""
    tokens, block_size, kind, limit = (config[name] for name in ("tokens", "block_size", "kind", "positions"))
    lengths = _lengths(kind, tokens, block_size, limit, random)
    middle = np.flatnonzero(np.abs(np.arange(limit) % block_size - block_size // 2) <= block_size // 4)
    middle = np.resize(random.permutation(middle), len(lengths))  # another for each while there are others
    positions, places = [], []  # a place: the number of the block that was reached, and the offset
    num_blocks = 0
    for number, length in enumerate(lengths):
        starts_anywhere = kind == "continued" or (kind == "decode" and random.random() < 0.6)
        start = int(random.integers(0, limit // 2)) if starts_anywhere else 0
        if kind == "decode" and not starts_anywhere:  # the first slot of a block, or the last
            start = block_size * int(random.integers(1, limit // (2 * block_size) + 1)) - random.integers(0, 2)
        elif kind == "steady":
            start = int(middle[number])
        for position in range(start, start + length):
            positions.append(position)
            places.append((num_blocks + position // block_size - start // block_size, position % block_size))
        num_blocks = places[-1][0] + 1
    num_blocks += 2  # that nobody owns
    blocks = random.permutation(num_blocks)
    slots = np.array([blocks[number] * block_size + offset for number, offset in places], config["slot_dtype"])
    if kind == "padded":
        slots[tokens - tokens // 3 :] = -1
    elif kind == "unwritten":
        slots[:] = -1
    return np.array(positions, np.int32), slots, num_blocks


def _lengths(kind: str, tokens: int, block_size: int, limit: int, random: np.random.Generator) -> list[int]:
    lengths: list[int] = []
    left = tokens
    while left:
        length = {"decode": 1, "steady": 1, "whole": limit}.get(kind)
        if length is None:
            length = min(int(random.integers(1, 3 * block_size + 2)), limit // 2)
        lengths.append(min(length, left))
        left -= lengths[-1]
    return lengths


def cache(config: Config, num_blocks: int, gap: int, random: np.random.Generator) -> Array:  # [B, Nkv, bs, D]
    """Numbers in some slots, NaN in the others: all must come through, or be cleared."""
    shape = (config["kv_heads"], config["block_size"], config["head_dim"])
    rows = normal(random, num_blocks * shape[0] * shape[1], shape[2], dtype=config["dtype"])
    rows[random.random(len(rows)) < 0.5] = np.nan
    whole = rows.reshape(num_blocks, *shape)
    return far_apart(whole, int(np.prod(shape)) + gap) if gap else whole


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, head_dim, dtype = config["tokens"], config["head_dim"], config["dtype"]

    def heads(count: int) -> Array:
        rows = normal(random, tokens * count, head_dim, dtype=dtype)
        return spoiled(random, rows, config["rows"]).reshape(tokens, count, head_dim)

    positions, slots, num_blocks = batch(config, random)
    cos, sin = angles(head_dim, config["positions"])
    q, k, v = (heads(config[count]) for count in ("heads", "kv_heads", "kv_heads"))
    if config["token_stride"]:
        q, k, v = side_by_side([q, k, v], config["token_stride"])
    of_tokens = {"q": q, "k": k, "v": v}
    arrays = {
        **of_tokens,
        "q_weight": weights(random, head_dim, dtype=config.get("weight_dtype", dtype)),
        "k_weight": weights(random, head_dim, dtype=config.get("weight_dtype", dtype)),
        "positions": positions,
        "cos": cos,
        "sin": sin,
        "k_cache": cache(config, num_blocks, config["gap"], random),
        "v_cache": cache(config, num_blocks, config.get("v_gap", config["gap"]), random),
        "slot_mapping": slots,
    }
    names = (*of_tokens, "positions", "slot_mapping")
    repeated = dict.fromkeys(names, int(config["repeated"])) if "repeated" in config else {}
    constants = {"eps": config.get("eps", 1e-6), "weight_bias": config.get("weight_bias", 0.0)}
    return Call(arrays, constants, repeated)


def of_model(shape: Shape, tokens: int) -> Config:
    sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
    places = {"positions": shape.positions, "block_size": BLOCK_SIZE, "token_stride": shape.token_stride}
    kind = "steady" if tokens <= MOST_DECODES else "whole"
    return BASE | sizes | places | {"tokens": tokens, "kind": kind}


def bytes_moved(config: Config) -> int:
    """Without what is cleared; as if every token had a slot, and a position of its own while there are others."""
    size = format_named(config["dtype"]).dtype.itemsize
    heads = config["heads"] + 2 * config["kv_heads"]
    a_token = 2 * size * heads * config["head_dim"] + 4 + np.dtype(config["slot_dtype"]).itemsize
    tables = 4 * config["head_dim"] * min(config["tokens"], config["positions"])
    return config["tokens"] * a_token + tables + 2 * size * config["head_dim"]


# An element whose pair cancels keeps the error of its pair, so all are measured by the ULP of their head's size. 1.5
# beyond the bound: the norm's factor is the chip's approximate one, and rounding twice can double what that changes.
OUTPUTS = (
    Output("q", floor=1.5, row_share=1.0, in_place="q"),
    Output("k_cache", floor=1.5, row_share=1.0, in_place="k_cache"),
    Output("v_cache", exact=True, in_place="v_cache"),
)
TWIN = Twin("qk_norm_rope_kv_write", OUTPUTS, corners, space, inputs, bytes_moved=bytes_moved, of_model=of_model)

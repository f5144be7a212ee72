"""kv_block_copy: blocks of any size, copied to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.cases.kv_write import cache
from parity.shape import BLOCK_SIZE, MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {
    "pairs": 3,
    "blocks": 12,
    "heads": 4,
    "block_size": 16,
    "head_dim": 128,
    "dtype": "bfloat16",
    "block_stride": 0,
    "mixed": True,  # sources repeat, and some pairs are padding
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            yield BASE | {"head_dim": head_dim, "dtype": dtype}
        for pairs in (0, 1, 6, 11):
            yield BASE | {"pairs": pairs, "dtype": dtype}
        yield BASE | {"heads": 1, "block_size": 7, "head_dim": 5, "dtype": dtype}
        yield BASE | {"dtype": dtype, "block_stride": 4 * 16 * 128 + 8}
        yield BASE | {"dtype": dtype, "block_stride": 4 * 16 * 128 + 3}
        yield BASE | {"pairs": 40, "blocks": 64, "heads": 8, "block_size": 128, "dtype": dtype}
    yield BASE | {"pairs": 6, "mixed": False}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"k_cache": 1}, {"v_cache": 1}, {"pairs": 1}):
        yield BASE | {"offset": offset}
    # More than 2^31 elements to the last block.
    yield BASE | {"pairs": 200, "blocks": 520, "heads": 1, "head_dim": 64, "block_stride": 1 << 22}


space = st.fixed_dictionaries(
    {
        "pairs": st.integers(0, 20),
        "blocks": st.integers(1, 24),
        "heads": st.sampled_from([1, 2, 8]),
        "block_size": st.sampled_from([5, 16, 128]),
        "head_dim": st.sampled_from([64, 128, 256]),
        "dtype": st.sampled_from(DTYPES),
        "block_stride": st.just(0),
        "mixed": st.just(True),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    """The blocks are parted into sources and destinations, the first and the last among them. Where pairs are mixed,
    sources repeat, and one pair in six is padding, whole or in half."""
    k_cache, v_cache = (cache(random, config, config["dtype"]) for _ in range(2))
    pairs = np.full((config["pairs"], 2), -1, np.int32)
    order = random.permutation(config["blocks"])
    count = min(config["pairs"], (config["blocks"] + 1) // 2)
    sources, destinations = order[count:], order[:count]
    if len(sources):
        chosen = random.choice(sources, count) if config["mixed"] else np.resize(sources, count)
        pairs[:count] = np.stack([chosen, destinations], axis=1)
        if config["mixed"]:
            pairs[random.random(pairs.shape) < 1 / 12] = -1
    return Call({"k_cache": k_cache, "v_cache": v_cache, "pairs": random.permutation(pairs)})


def of_model(shape: Shape, tokens: int) -> Config | None:
    """A block for each of so many sequences that go on apart from others, as in no step but one of decode."""
    if tokens > MOST_DECODES:
        return None
    sizes = {"heads": shape.kv_heads, "block_size": BLOCK_SIZE, "head_dim": shape.head_dim}
    return BASE | sizes | {"pairs": tokens, "blocks": 2 * tokens, "mixed": False}


def bytes_moved(config: Config) -> int:
    """As if no pair were padding."""
    size = format_named(config["dtype"]).dtype.itemsize
    return config["pairs"] * (4 * size * config["heads"] * config["block_size"] * config["head_dim"] + 8)


TWIN = Twin(
    "kv_block_copy",
    (Output("k_cache", exact=True, in_place="k_cache"), Output("v_cache", exact=True, in_place="v_cache")),
    corners,
    space,
    inputs,
    bytes_moved=bytes_moved,
    of_model=of_model,
)

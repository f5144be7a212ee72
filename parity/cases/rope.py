"""rope: heads of several sizes, alone or within a fused tensor, at positions from one end of the table to the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.inputs import angles, normal, spoiled, strided
from parity.shape import MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {
    "tokens": 4,
    "heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
    "positions": 512,  # of the table
    "order": "any",  # of the tokens' positions, or "prompt": each is followed by the next, from 0
    "rows": "normal",
    "token_stride": 0,
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            yield BASE | {"tokens": 1, "head_dim": head_dim, "dtype": dtype}
            yield BASE | {"tokens": 1500, "head_dim": head_dim, "dtype": dtype}
        for heads in (1, 2, 5, 32):
            yield BASE | {"tokens": 33, "heads": heads, "dtype": dtype}
        yield BASE | {"tokens": 0, "dtype": dtype}
        yield BASE | {"tokens": 37, "dtype": dtype, "rows": "nan"}
        yield BASE | {"tokens": 65, "heads": 32, "dtype": dtype, "token_stride": 6144}
        yield BASE | {"tokens": 65, "heads": 4, "dtype": dtype, "token_stride": 5121}
    for heads in (2, 16, 32, 64):
        yield BASE | {"tokens": 2100, "heads": heads, "token_stride": (heads + 8) * 128}
    yield BASE | {"tokens": 1500, "heads": 7}
    yield BASE | {"tokens": 37, "head_dim": 6}
    yield BASE | {"tokens": 37, "positions": 1}
    yield BASE | {"tokens": 37, "positions": 40960}
    yield BASE | {"tokens": 600, "order": "prompt"}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"x": 1}, {"positions": 1}, {"cos": 1}, {"sin": 1}):
        yield BASE | {"offset": offset}
    # More than 2^31 elements.
    yield BASE | {"tokens": 127, "heads": 64, "repeated": 265000}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 300),
        "heads": st.integers(1, 40),
        "head_dim": st.sampled_from([64, 128, 256]),
        "dtype": st.sampled_from(DTYPES),
        "positions": st.integers(1, 1000),
        "order": st.just("any"),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "token_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, head_dim, num_positions = config["tokens"], config["head_dim"], config["positions"]
    x = normal(random, tokens, config["heads"], head_dim, dtype=config["dtype"])
    x = spoiled(random, x, config["rows"])
    if config["token_stride"]:
        x = strided(x, config["token_stride"])
    positions: Array = random.integers(0, num_positions, tokens, dtype=np.int32)
    positions[:1], positions[1:2] = num_positions - 1, 0
    if config["order"] == "prompt":
        positions = (np.arange(tokens) % num_positions).astype(np.int32)
    cos, sin = angles(head_dim, num_positions)
    repeated = {name: config["repeated"] for name in ("x", "positions")} if "repeated" in config else {}
    return Call({"x": x, "positions": positions, "cos": cos, "sin": sin}, repeated=repeated)


def of_model(shape: Shape, tokens: int) -> Config:
    """Of q."""
    order = "any" if tokens <= MOST_DECODES else "prompt"
    places = {"positions": shape.positions, "order": order, "token_stride": shape.token_stride}
    return BASE | {"tokens": tokens, "heads": shape.heads, "head_dim": shape.head_dim} | places


def bytes_moved(config: Config) -> int:
    """A row of each table for each token, as if no two had the same while there are others."""
    size = format_named(config["dtype"]).dtype.itemsize
    tokens, head_dim = config["tokens"], config["head_dim"]
    tables = 4 * head_dim * min(tokens, config["positions"])
    return tokens * (2 * size * config["heads"] * head_dim + 4) + tables


# An element whose pair cancels keeps the error of its pair, so all are measured by the ULP of their head's size.
# 1.5: the chip adds one product to the other without rounding it first, and two of a head's size err by as much; on an
# H200 a head needs 0.7.
OUTPUTS = (Output("out", floor=1.5, row_share=1.0, in_place="x"),)
TWIN = Twin("rope", OUTPUTS, corners, space, inputs, bytes_moved=bytes_moved, of_model=of_model)

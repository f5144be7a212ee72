"""moe_combine: rows that are anywhere, or nowhere, weighted and added in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.inputs import far_apart, normal, spoiled
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {
    "tokens": 8,
    "per_token": 8,
    "hidden": 2048,
    "dtype": "bfloat16",
    "rows": "normal",
    "unrouted": 0.2,
    "row_stride": 0,
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for tokens in (0, 1, 3, 64, 300, 1200):
            yield BASE | {"tokens": tokens, "dtype": dtype}
        for hidden in (1, 256, 768, 769, 4096):
            yield BASE | {"tokens": 7, "hidden": hidden, "dtype": dtype}
        for rows in ("nan", "inf", "zeros", "tiny", "huge"):
            yield BASE | {"tokens": 300, "dtype": dtype, "rows": rows}
        for unrouted in (0.0, 1.0):
            yield BASE | {"dtype": dtype, "unrouted": unrouted}
    for per_token in (1, 2, 3):
        for tokens in (5, 900):
            yield BASE | {"tokens": tokens, "per_token": per_token}
    yield BASE | {"tokens": 1, "hidden": 7168}
    yield BASE | {"tokens": 4096, "hidden": 256}
    for hidden in (72, 768, 769):
        yield BASE | {"tokens": 1500, "hidden": hidden}
    yield BASE | {"tokens": 65, "row_stride": 4096}
    yield BASE | {"tokens": 65, "row_stride": 2051}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"rows": 1}, {"row_of": 1}, {"weights": 1}, {"out": 1}):
        yield BASE | {"offset": offset}
    for out_stride in (4096, 2051):
        yield BASE | {"tokens": 37, "out_stride": out_stride}
    for tokens in (1, 133):
        yield BASE | {"tokens": tokens, "launch": {"pdl": True}}
    # More than 2^31 elements: to the last of the rows, and in the output.
    yield BASE | {"tokens": 65, "row_stride": 1 << 22}
    yield BASE | {"tokens": 509, "hidden": 512, "per_token": 2, "repeated": 4194305}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 300),
        "per_token": st.sampled_from([1, 2, 8]),
        "hidden": st.sampled_from([256, 768, 769, 2048]),
        "dtype": st.sampled_from(DTYPES),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "unrouted": st.sampled_from([0.0, 0.3]),
        "row_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    """Every routed (token, k) has a row of its own. Rows that nobody has, and weights of the unrouted, are NaN."""
    shape = tokens, per_token = config["tokens"], config["per_token"]
    num_rows = tokens * per_token + 16
    row_of = random.permutation(num_rows)[: tokens * per_token].reshape(shape)
    row_of = np.where(random.random(shape) < config["unrouted"], -1, row_of).astype(np.int32)
    rows = spoiled(random, normal(random, num_rows, config["hidden"], dtype=config["dtype"]), config["rows"])
    rows[~np.isin(np.arange(num_rows), row_of)] = np.nan
    weights = random.uniform(0.1, 1.0, shape).astype(np.float32)
    weights[row_of < 0] = np.nan
    if config["row_stride"]:
        rows = far_apart(rows, config["row_stride"])
    repeated = {name: config["repeated"] for name in ("row_of", "weights") if "repeated" in config}
    return Call({"rows": rows, "row_of": row_of, "weights": weights}, {}, repeated)


def of_model(shape: Shape, tokens: int) -> Config | None:
    if not shape.experts:
        return None
    return BASE | {"tokens": tokens, "per_token": shape.top_k, "hidden": shape.hidden, "unrouted": 0.0}


def bytes_moved(config: Config) -> int:
    """As if all were routed."""
    tokens, per_token = config["tokens"], config["per_token"]
    size = format_named(config["dtype"]).dtype.itemsize
    return tokens * (size * config["hidden"] * (per_token + 1) + 8 * per_token)


# A sum that cancels keeps the error of its terms, so all are measured by the ULP of their row's size. 1.5: the chip
# does not round a product before it adds it, and eight sums err by as much again.
OUTPUTS = (Output("out", floor=1.5, row_share=1.0),)
TWIN = Twin("moe_combine", OUTPUTS, corners, space, inputs, bytes_moved=bytes_moved, of_model=of_model)

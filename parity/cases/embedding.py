"""embedding: rows of any length, ids from one end of the table to the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {"tokens": 4, "vocabulary": 1000, "hidden": 1024, "dtype": "bfloat16", "row_stride": 0}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for tokens in (1, 0, 3, 133):
            for hidden in (1024, 4096):
                yield BASE | {"tokens": tokens, "hidden": hidden, "dtype": dtype}
        for hidden in (1, 8, 72, 769, 5120):
            yield BASE | {"tokens": 7, "hidden": hidden, "dtype": dtype}
        yield BASE | {"tokens": 3000, "hidden": 2048, "dtype": dtype}
        yield BASE | {"tokens": 65, "hidden": 512, "dtype": dtype, "row_stride": 1536}
        yield BASE | {"tokens": 65, "hidden": 512, "dtype": dtype, "row_stride": 1539}
    yield BASE | {"tokens": 5000, "hidden": 769}
    yield BASE | {"tokens": 300, "vocabulary": 1}
    yield BASE | {"tokens": 300, "vocabulary": 151936, "hidden": 4096}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"token_ids": 1}, {"table": 1}, {"out": 1}):
        yield BASE | {"offset": offset}
    for out_stride in (1536, 1027):
        yield BASE | {"tokens": 37, "out_stride": out_stride}
    # More than 2^31 elements: in the output, and to the table's last row.
    yield BASE | {"tokens": 509, "hidden": 4096, "repeated": 530000}
    yield BASE | {"tokens": 512, "hidden": 64, "vocabulary": 151936, "row_stride": 15360}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 300),
        "vocabulary": st.integers(1, 500),
        "hidden": st.integers(1, 640).map(lambda count: 8 * count) | st.integers(1, 1000),
        "dtype": st.sampled_from(DTYPES),
        "row_stride": st.just(0),
    }
)


def _table(random: np.random.Generator, ids: Array, rows: int, hidden: int, row_stride: int, dtype: Any) -> Array:
    """Only rows that are asked for hold anything, NaN among it: the others cost neither time nor memory."""
    table = np.zeros((rows, row_stride or hidden), format_named(dtype).dtype)[:, :hidden]
    asked = np.unique(ids)
    table[asked] = normal(random, len(asked), hidden, dtype=dtype)
    table[asked[::7], hidden // 2] = np.nan
    return table


def ids(config: Config, random: np.random.Generator) -> Array:
    token_ids: Array = random.integers(0, config["vocabulary"], config["tokens"], dtype=np.int32)
    return token_ids


def inputs(config: Config, random: np.random.Generator) -> Call:
    token_ids = ids(config, random)
    token_ids[:1], token_ids[1:2] = config["vocabulary"] - 1, 0
    sizes = config["vocabulary"], config["hidden"], config["row_stride"]
    table = _table(random, token_ids, *sizes, config["dtype"])
    repeated = {"token_ids": config["repeated"]} if "repeated" in config else {}
    return Call({"token_ids": token_ids, "table": table}, repeated=repeated)


def of_model(shape: Shape, tokens: int) -> Config:
    return BASE | {"tokens": tokens, "vocabulary": shape.vocab, "hidden": shape.hidden}


def bytes_moved(config: Config) -> int:
    """A row of the table for each token, whether or not others have the same."""
    size = format_named(config["dtype"]).dtype.itemsize
    return config["tokens"] * (2 * size * config["hidden"] + 4)


TWIN = Twin(
    "embedding",
    (Output("out", exact=True),),
    corners,
    space,
    inputs,
    bytes_moved=bytes_moved,
    of_model=of_model,
    unshared={"token_ids": ids},
)

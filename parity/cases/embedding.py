"""embedding: rows of any length, ids from one end of the table to the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {"tokens": 4, "vocabulary": 1000, "hidden": 1024, "dtype": "bfloat16", "row_stride": 0}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for tokens in (0, 1, 3, 133):
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
    # More than 2^31 elements: in the output, and to the table's last row.
    yield BASE | {"tokens": 512, "hidden": 4096, "repeated": 530000}
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


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, rows = config["tokens"], config["vocabulary"]
    token_ids: Array = random.integers(0, rows, tokens, dtype=np.int32)
    token_ids[:1], token_ids[1:2] = rows - 1, 0
    table = _table(random, token_ids, rows, config["hidden"], config["row_stride"], config["dtype"])
    repeated = {"token_ids": config["repeated"]} if "repeated" in config else {}
    return Call({"token_ids": token_ids, "table": table}, repeated=repeated)


def bytes_moved(config: Config) -> int:
    size = format_named(config["dtype"]).dtype.itemsize
    return config["tokens"] * (2 * size * config["hidden"] + 4)


TWIN = Twin("embedding", (Output("out", exact=True),), corners, space, inputs, bytes_moved=bytes_moved)

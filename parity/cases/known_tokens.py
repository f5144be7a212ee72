"""known_tokens: batches where none, some and all tokens are those that rows before drew, and rows that drew none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.twin import Call, Config, Output, Twin
from reference.formats import Array

BASE = {"tokens": 37, "rows": 20, "unknown": 0.5, "missing": 0}


def corners() -> Iterator[Config]:
    for tokens in (1, 0, 255, 256, 257, 5000):
        yield BASE | {"tokens": tokens}
    for unknown in (0.0, 1.0):
        yield BASE | {"unknown": unknown}
    for rows in (0, 1, 1024):
        yield BASE | {"rows": rows, "unknown": 0.5 if rows else 0.0}
    yield BASE | {"missing": -1}
    for offset in (1, 8, {"token_ids": 1}, {"previous": 1}, {"out": 1}):
        yield BASE | {"offset": offset}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 600),
        "rows": st.integers(1, 1024),
        "unknown": st.sampled_from((0.0, 0.1, 0.9, 1.0)),
        "missing": st.sampled_from((0, -1)),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    token_ids: Array = random.integers(0, 151936, config["tokens"]).astype(np.int32)
    previous: Array = random.integers(0, 151936, config["rows"]).astype(np.int32)
    previous[::5] = random.integers(-3, 0, len(previous[::5]))
    unknown = random.random(config["tokens"]) < config["unknown"]
    rows = random.integers(0, max(config["rows"], 1), config["tokens"])
    token_ids[unknown] = -1 - rows[unknown]
    return Call({"token_ids": token_ids, "previous": previous}, {"missing": config["missing"]})


def bytes_moved(config: Config) -> int:
    return 4 * (2 * config["tokens"] + config["rows"])


TWIN = Twin(
    "known_tokens",
    (Output("out", exact=True),),
    corners,
    space,
    inputs,
    bytes_moved=bytes_moved,
)

"""rms_norm: rows of any length, aligned or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal, spoiled, strided, weights
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {"tokens": 4, "hidden": 1024, "dtype": "bfloat16", "weight_bias": 0.0, "rows": "normal", "row_stride": 0}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for tokens in (0, 1, 3, 133, 1000):
            for hidden in (1024, 2048, 4096):
                yield BASE | {"tokens": tokens, "hidden": hidden, "dtype": dtype}
        for hidden in (1, 8, 72, 128, 769, 5120, 7168, 12288):
            yield BASE | {"tokens": 7, "hidden": hidden, "dtype": dtype}
        for rows in ("nan", "inf", "zeros", "tiny", "huge"):
            yield BASE | {"tokens": 37, "dtype": dtype, "rows": rows}
        yield BASE | {"tokens": 300, "dtype": dtype, "weight_bias": 1.0}
        yield BASE | {"tokens": 37, "dtype": dtype, "eps": 0.25}
        yield BASE | {"tokens": 65, "hidden": 4096, "dtype": dtype, "row_stride": 15360}
        yield BASE | {"tokens": 65, "hidden": 4096, "dtype": dtype, "row_stride": 4099}
    for dtype, weight_dtype in (("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")):
        yield BASE | {"tokens": 37, "dtype": dtype, "weight_dtype": weight_dtype}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"x": 1}, {"weight": 1}, {"out": 1}):
        yield BASE | {"offset": offset}
    for out_stride in (1536, 1027):
        yield BASE | {"tokens": 37, "out_stride": out_stride}
    for tokens in (1, 133):
        yield BASE | {"tokens": tokens, "launch": {"pdl": True}}
    # More than 2^31 elements.
    yield BASE | {"tokens": 509, "hidden": 512, "repeated": 4194305}
    yield BASE | {"tokens": 127, "hidden": 12288, "repeated": 175000}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 300),
        "hidden": st.integers(1, 640).map(lambda count: 8 * count) | st.integers(1, 1000),
        "dtype": st.sampled_from(DTYPES),
        "weight_bias": st.sampled_from([0.0, 1.0]),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "row_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, hidden, dtype = config["tokens"], config["hidden"], config["dtype"]
    x = spoiled(random, normal(random, tokens, hidden, dtype=dtype), config["rows"])
    if config["row_stride"]:
        x = strided(x, config["row_stride"])
    repeated = {"x": config["repeated"]} if "repeated" in config else {}
    arrays = {"x": x, "weight": weights(random, hidden, dtype=config.get("weight_dtype", dtype))}
    return Call(arrays, {"eps": config.get("eps", 1e-6), "weight_bias": config["weight_bias"]}, repeated)


def of_model(shape: Shape, tokens: int) -> Config:
    return BASE | {"tokens": tokens, "hidden": shape.hidden}


def bytes_moved(config: Config) -> int:
    size = format_named(config["dtype"]).dtype.itemsize
    return size * config["hidden"] * (2 * config["tokens"] + 1)


# 1.5: the mean is added up in another order, and the chip's 1 / sqrt errs by up to two units of float32, NumPy's root
# and quotient by half a unit each; on an H200 a row needs up to 1.
OUTPUTS = (Output("out", floor=1.5),)
TWIN = Twin("rms_norm", OUTPUTS, corners, space, inputs, bytes_moved=bytes_moved, of_model=of_model)

"""add_rms_norm: the rounded sum, and the norm of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal, spoiled, strided, weights
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {
    "tokens": 4,
    "hidden": 1024,
    "dtype": "bfloat16",
    "weight_dtype": "",
    "weight_bias": 0.0,
    "rows": "normal",
    "row_stride": 0,
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for tokens in (0, 1, 133, 1000):
            for hidden in (1024, 4096):
                yield BASE | {"tokens": tokens, "hidden": hidden, "dtype": dtype}
        for hidden in (1, 8, 72, 769, 5120):
            yield BASE | {"tokens": 7, "hidden": hidden, "dtype": dtype}
        for rows in ("nan", "inf", "zeros", "tiny", "huge", "cancelled"):
            yield BASE | {"tokens": 37, "dtype": dtype, "rows": rows}
        yield BASE | {"tokens": 65, "hidden": 2048, "dtype": dtype, "row_stride": 15360}
        yield BASE | {"tokens": 65, "hidden": 2048, "dtype": dtype, "row_stride": 2051}
        yield BASE | {"tokens": 37, "dtype": dtype, "eps": 2.0}
    yield BASE | {"tokens": 300, "weight_bias": 1.0}
    yield BASE | {"tokens": 37, "weight_dtype": "float32"}
    # Rows of the residual apart, alone and beside those of x: by another number of elements.
    yield BASE | {"tokens": 65, "hidden": 2048, "residual_stride": 4096}
    yield BASE | {"tokens": 65, "hidden": 2048, "residual_stride": 2051}
    yield BASE | {"tokens": 65, "hidden": 2048, "residual_stride": 4096, "row_stride": 15360}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"x": 1}, {"residual": 1}, {"weight": 1}, {"normed": 1}, {"new_residual": 1}):
        yield BASE | {"offset": offset}
    for out_stride in (1536, 1027, {"normed": 1536}, {"new_residual": 1027}):
        yield BASE | {"tokens": 37, "out_stride": out_stride}
    for tokens in (1, 133):
        yield BASE | {"tokens": tokens, "launch": {"pdl": True}}
    # More than 2^31 elements.
    yield BASE | {"tokens": 127, "hidden": 12288, "repeated": 175000}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 300),
        "hidden": st.integers(1, 640).map(lambda count: 8 * count) | st.integers(1, 1000),
        "dtype": st.sampled_from(DTYPES),
        "weight_dtype": st.just(""),
        "weight_bias": st.sampled_from([0.0, 1.0]),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "row_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    """The residual is several times what is added to it, as in a model: a sum that is not rounded shows. Where rows
    are "cancelled", a sum is 0 or the little that is left of it."""
    tokens, hidden, dtype, rows = config["tokens"], config["hidden"], config["dtype"], config["rows"]
    residual = normal(random, tokens, hidden, dtype=dtype, scale=4.0)
    if rows == "cancelled":
        x = -residual
        x[:, ::3] *= np.asarray(0.75, x.dtype)
    else:
        x = spoiled(random, normal(random, tokens, hidden, dtype=dtype), rows)
        residual = spoiled(random, residual, rows)
    if config["row_stride"]:
        x = strided(x, config["row_stride"])
    if "residual_stride" in config:
        residual = strided(residual, config["residual_stride"])
    repeated = {name: config["repeated"] for name in ("x", "residual")} if "repeated" in config else {}
    weight = weights(random, hidden, dtype=config["weight_dtype"] or dtype)
    arrays = {"x": x, "residual": residual, "weight": weight}
    return Call(arrays, {"eps": config.get("eps", 1e-6), "weight_bias": config["weight_bias"]}, repeated)


def of_model(shape: Shape, tokens: int) -> Config:
    return BASE | {"tokens": tokens, "hidden": shape.hidden}


def bytes_moved(config: Config) -> int:
    dtypes = config["dtype"], config["weight_dtype"] or config["dtype"]
    size, of_weight = (format_named(dtype).dtype.itemsize for dtype in dtypes)
    return config["hidden"] * (4 * size * config["tokens"] + of_weight)


TWIN = Twin(
    "add_rms_norm",
    # The norm's floor is that of rms_norm: the mean is added up in another order. The sum has no other order.
    (Output("normed", floor={"float32": 1.5}), Output("new_residual", exact=True, any_nan=True)),
    corners,
    space,
    inputs,
    reference="reference.kernels.rms_norm:add_rms_norm",
    bytes_moved=bytes_moved,
    of_model=of_model,
)

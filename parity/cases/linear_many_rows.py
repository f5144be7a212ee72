"""linear_many_rows: products of any sizes that the copy engine takes, with what is added to them, by each library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.device import Tensor, device_of
from optimized.kernels import linear_many_rows as panel
from optimized.libraries import QUACK, missing
from parity.inputs import far_apart, normal, spoiled, strided
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import linear as reference_linear
from reference.kernels.gated_linear import gated_linear

DTYPES = ("bfloat16", "float16")
_DEPTH = 16  # products that a tensor core adds at a time
BASE: dict[str, Any] = {
    "tokens": 133,
    "channels": 264,
    "features": 200,
    "dtype": "bfloat16",
    "adds": "",  # "bias", "residual", "both"
    "activation": None,
    "choice": "quack",  # with its usual tiles, or with those named; "cublas"
    "rows": "normal",
    "row_stride": 0,
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for tokens in (65, 0, 1, 300):
            yield BASE | {"tokens": tokens, "dtype": dtype}
        for adds in ("bias", "residual", "both"):
            yield BASE | {"dtype": dtype, "adds": adds}
        for tokens in (1, 133):
            yield BASE | {"tokens": tokens, "dtype": dtype, "activation": "silu", "features": 272}
        for channels, features in ((8, 8), (72, 136), (1032, 72), (128, 520)):
            yield BASE | {"channels": channels, "features": features, "dtype": dtype}
        for rows in ("nan", "inf", "zeros", "tiny"):
            yield BASE | {"dtype": dtype, "rows": rows}
        for adds in ("", "bias", "residual", "both"):
            for tokens in (1, 300):
                yield BASE | {"tokens": tokens, "dtype": dtype, "adds": adds, "choice": "cublas"}
        yield BASE | {"dtype": dtype, "row_stride": 1024}
        yield BASE | {"dtype": dtype, "row_stride": 1024, "activation": "silu", "features": 272}
    yield from placed()


def placed() -> Iterator[Config]:
    """Sizes and places that the copy engine takes, or that are left to cuBLAS; every other tiling."""
    yield BASE | {"adds": "bias", "bias_dtype": "float32"}
    # Rows whose length is no multiple of an access, at places that are.
    yield BASE | {"channels": 75, "row_stride": 80, "weight_stride": 88}
    yield BASE | {"channels": 3, "row_stride": 8, "weight_stride": 8}
    yield BASE | {"features": 72, "out_stride": 80}
    yield BASE | {"channels": 75, "features": 77, "choice": "cublas"}
    yield BASE | {"adds": "bias", "bias_dtype": "float32", "choice": "cublas"}
    for tiles in ("128x128 2x1", "256x128 2x1", "128x64 1x1 pingpong", "128x256 2x1"):
        yield BASE | {"tokens": 400, "choice": f"quack {tiles}", "adds": "both"}
        yield BASE | {"tokens": 400, "choice": f"quack {tiles}", "activation": "silu", "features": 544}
    # As large as layers of models are, which a chip takes.
    for choice in ("quack", "cublas"):
        for channels, features in ((4096, 6144), (12288, 4096), (2048, 5120)):
            yield BASE | {"tokens": 1111, "channels": channels, "features": features, "choice": choice}
    # Tensors that begin behind what memory is aligned to: all, and each alone.
    for offset in (8, {"x": 8}, {"weight": 8}, {"out": 8}):
        yield BASE | {"offset": offset}
    for offset in (1, {"x": 1}, {"weight": 1}, {"out": 1}):
        yield BASE | {"offset": offset, "choice": "cublas"}
    yield BASE | {"out_stride": 256}
    yield BASE | {"out_stride": 203, "choice": "cublas"}
    # More than 2^31 elements: to the last row of x, of the weight, and in the output.
    yield BASE | {"tokens": 67, "channels": 64, "row_stride": 1 << 25}
    yield BASE | {"features": 72, "channels": 64, "weight_stride": 1 << 25}
    yield BASE | {"tokens": 127, "channels": 64, "features": 520, "repeated": 4194305}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 300),
        "channels": st.integers(1, 40).map(lambda count: 8 * count),
        "features": st.integers(1, 40).map(lambda count: 8 * count),
        "dtype": st.sampled_from(DTYPES),
        "adds": st.sampled_from(["", "bias", "residual", "both"]),
        "activation": st.none(),
        "choice": st.just("quack"),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "row_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, channels, features, dtype = (config[name] for name in ("tokens", "channels", "features", "dtype"))
    x = spoiled(random, normal(random, tokens, channels, dtype=dtype), config["rows"])
    # So that sums are of order 1 for the gated activation, which otherwise saturates.
    weight = normal(random, features, channels, dtype=dtype, scale=2 / channels**0.5)
    stride, weight_stride = config["row_stride"], config.get("weight_stride", 0)
    arrays = {"x": _apart(x, stride), "weight": _apart(weight, weight_stride)}
    if config["adds"] in ("bias", "both"):
        arrays["bias"] = normal(random, features, dtype=config.get("bias_dtype", dtype))
    if config["adds"] in ("residual", "both"):
        residual = normal(random, tokens, features, dtype=dtype)
        arrays["residual"] = strided(residual, stride) if stride else residual
    repeated = {"x": config["repeated"]} if "repeated" in config else {}
    constants = {name: config[name] for name in ("adds", "activation", "choice")}
    return Call(arrays, constants, repeated)


def _apart(rows: Array, stride: int) -> Array:
    if not stride:
        return rows
    return strided(rows, stride) if stride < 1 << 16 else far_apart(rows, stride)


def reference(x: Array, weight: Array, *more: Array, adds: str, activation: str | None, choice: str) -> Array:
    """`linear`, or `gated_linear`."""
    if activation is not None:
        return gated_linear(x, weight, kind=activation)
    return reference_linear.linear(x, weight, *_named(more, adds))


def optimized(
    x: Tensor,
    weight: Tensor,
    *more: Tensor,
    adds: str,
    activation: str | None,
    choice: str,
    out: Tensor | None = None,
) -> Tensor:
    bias, residual = _named(more, adds)
    choice = panel.usual_choice(device_of(x)) if choice == "quack" else choice
    return panel.linear_many_rows(x, weight, bias, residual, activation=activation, choice=choice, out=out)


def _named(more: Sequence[Any], adds: str) -> tuple[Any, Any]:
    """Bias and residual."""
    return {"": (None, None), "bias": (*more, None), "residual": (None, *more), "both": more}[adds]  # type: ignore[return-value]


def magnitudes(call: Call) -> list[Array]:
    """See `of_product`; of a gated activation what such an error of both sums comes to."""
    wide_arrays = {name: np.abs(array.astype(np.float64)) for name, array in call.arrays.items()}
    with np.errstate(all="ignore"):
        terms = of_product(wide_arrays["x"], wide_arrays["weight"])
        if call.constants["activation"] is None:
            return [terms + wide_arrays.get("bias", 0.0) + wide_arrays.get("residual", 0.0)]
        return [gated_magnitude(call.arrays["x"], call.arrays["weight"], terms)]


def of_product(x: Array, weight: Array) -> Array:
    """The sum of the magnitudes of all terms (f64, none below 0), and half of what a sum has on its way, at each of its
    K / 16 steps: a tensor core that goes through all of K cuts off what lies 2^-23 below it, always towards 0."""
    steps = x.shape[-1] / _DEPTH
    return x @ weight.T + steps / 2 * np.sqrt(x**2 @ (weight**2).T)


def gated_magnitude(x: Array, weight: Array, terms: Array) -> Array:
    """silu's slope is at most 1.1."""
    both = x.astype(np.float64) @ weight.astype(np.float64).T
    half = both.shape[-1] // 2
    gate, up = both[:, :half], both[:, half:]
    return 1.1 * terms[:, :half] * np.abs(up) + np.abs(gate / (1 + np.exp(-gate))) * terms[:, half:]


def untried(config: Config, executor: str) -> str | None:
    if config["choice"] == "cublas" and executor != "device":
        return "cuBLAS comes as machine code: there is nothing to compile, and nothing to simulate"
    return None if config["choice"] in ("cublas", "torch") else missing(QUACK)


def bytes_moved(config: Config) -> int:
    tokens, channels, features = config["tokens"], config["channels"], config["features"]
    outputs = features if config["activation"] is None else features // 2
    elements = tokens * channels + features * channels + tokens * outputs
    if config["adds"] in ("residual", "both"):
        elements += tokens * features
    return elements * format_named(config["dtype"]).dtype.itemsize


# 2: tensor cores add groups of 16 products with a few bits more than float32 has, and cut the rest off. 4 ULPs of
# float32: the chip's exp2 and reciprocal in the gated activation.
OUTPUTS = (Output("out", of_magnitude=2.0, floor=4.0),)
TWIN = Twin(
    "linear_many_rows",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.linear_many_rows:reference",
    optimized="parity.cases.linear_many_rows:optimized",
    bytes_moved=bytes_moved,
    magnitudes=magnitudes,
    library=QUACK,
    untried=untried,
)

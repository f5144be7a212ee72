"""linear: products for up to 64 rows, with bias, residual and a norm of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.arguments import HALVES
from optimized.kernels import linear as panel
from parity.inputs import far_apart, normal, spoiled, strided, weights
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import linear as reference_panel

BASE: dict[str, Any] = {
    "tokens": 4,
    "in_features": 320,
    "out_features": 40,
    "dtype": "bfloat16",
    "adds": "",  # "bias", "residual", "both"
    "norm": False,
    "pdl": False,
    "rows": "normal",
    "row_stride": 0,
    "weight_stride": 0,
}
FEW_ROWS = (1, 0, 2, 7, 8, 9, 16, 17, 33, 64)  # one first: a twin whose first corner alone is tried launches something
MOST_TOKENS = 64  # that the benchmark has these kernels take
MOST_SIMULATED = 1 << 21  # elements of a weight: larger ones take minutes to simulate


def corners() -> Iterator[Config]:
    for tokens in FEW_ROWS:
        yield BASE | {"tokens": tokens}
        yield BASE | {"tokens": tokens, "adds": "both", "norm": True, "pdl": True}
    for dtype in HALVES:
        for adds in ("bias", "residual", "both"):
            yield BASE | {"tokens": 20, "dtype": dtype, "adds": adds, "pdl": True}
        for rows in ("nan", "inf", "zeros", "tiny", "huge"):
            yield BASE | {"tokens": 20, "dtype": dtype, "rows": rows}
    for rows in ("nan", "inf", "zeros", "tiny", "huge"):
        yield BASE | {"tokens": 20, "rows": rows, "norm": True}
    for k in (8, 40, 64, 99, 100, 256, 1000, 1024):
        yield BASE | {"tokens": 3, "in_features": k, "out_features": 33, "adds": "bias"}
        yield BASE | {"tokens": 3, "in_features": k, "norm": True, "pdl": True}
    for n in (1, 15, 16, 17, 64, 515):
        yield BASE | {"tokens": 5, "in_features": 136, "out_features": n, "adds": "residual", "pdl": n > 16}
    for tokens in (65, 130):  # more than one unit takes
        yield BASE | {"tokens": tokens, "in_features": 136, "out_features": 20, "adds": "both", "pdl": True}
    yield BASE | {"tokens": 3, "in_features": 64, "out_features": 2500, "pdl": True}  # several units a block
    yield BASE | {"norm": True, "eps": 0.25}
    yield BASE | {"norm": True, "weight_bias": 1.0}
    yield BASE | {"adds": "bias", "bias_dtype": "float32"}
    yield from placed()
    yield from of_models()


def placed() -> Iterator[Config]:
    """Where tensors begin, and how far apart their rows are."""
    for row_stride in (960, 324, 322, 321):  # multiples of 16, 8, 4 and 2 bytes
        yield BASE | {"tokens": 9, "row_stride": row_stride}
        yield BASE | {"tokens": 9, "weight_stride": row_stride, "adds": "residual", "out_stride": row_stride}
    for offset in (1, 8, {"x": 1}, {"weight": 1}, {"out": 1}, {"x": 4}, {"weight": 2}):
        yield BASE | {"offset": offset}
    yield BASE | {"adds": "both", "norm": True, "offset": {"residual": 1, "bias": 1, "norm_weight": 1}}
    # More than 2^31 elements: to the last row of x, of the weight, and of what is written.
    yield BASE | {"tokens": 33, "in_features": 64, "row_stride": (1 << 26) + 8}
    yield BASE | {"tokens": 3, "in_features": 64, "out_features": 67, "weight_stride": 1 << 25}
    yield BASE | {"tokens": 64, "in_features": 64, "out_stride": 1 << 26}


def of_models() -> Iterator[Config]:
    """As wide as in models (0.6B, 30B-A3B, 8B, 8B of four ranks), and of few channels; then as they are."""
    for tokens in (1, 33):
        for k in (1024, 2048, 4096, 3072):
            yield BASE | {"tokens": tokens, "in_features": k, "out_features": 48, "adds": "residual", "pdl": True}
        yield BASE | {"tokens": tokens, "in_features": 4104, "out_features": 24, "norm": True}
    for tokens in (1, 13, 32, 64):
        for k, n in ((4096, 6144), (4096, 4096), (12288, 4096), (1024, 4096), (2048, 1024), (2048, 5120)):
            yield BASE | {"tokens": tokens, "in_features": k, "out_features": n, "pdl": tokens < 32}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 64),
        "in_features": st.integers(1, 60).map(lambda count: 8 * count) | st.integers(1, 400),
        "out_features": st.integers(1, 120),
        "dtype": st.just("bfloat16"),
        "adds": st.sampled_from(["", "bias", "residual", "both"]),
        "norm": st.booleans(),
        "pdl": st.booleans(),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "row_stride": st.just(0),
        "weight_stride": st.just(0),
    }
)


def reference(x: Array, weight: Array, *others: Array, given: list[str], **constants: Any) -> Array:
    return reference_panel.linear(x, weight, **dict(zip(given, others, strict=True)), **for_reference(constants))


def optimized(x: Any, weight: Any, *others: Any, given: list[str], **constants: Any) -> Any:
    named = dict(zip(given, others, strict=True))
    return panel.linear(x, weight, **named, **for_optimized(constants), invariant=True)


def for_reference(constants: dict[str, Any]) -> dict[str, Any]:
    """It knows no launches, and is told what a norm rounds to, for its arrays may be wider."""
    rest = {name: value for name, value in constants.items() if name not in ("pdl", "rounded_to")}
    rounded_to = constants.get("rounded_to")
    return rest if rounded_to is None else rest | {"rounded_to": format_named(rounded_to).dtype}


def for_optimized(constants: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in constants.items() if name != "rounded_to"}


def dense_inputs(config: Config, random: np.random.Generator, *, rows: int) -> Call:
    """x, a weight of so many rows, and a norm's weight; "given": the names of those that not every call has."""
    tokens, k, dtype = config["tokens"], config["in_features"], config["dtype"]
    x = spoiled(random, normal(random, tokens, k, dtype=dtype), config["rows"])
    weight = normal(random, rows, k, dtype=dtype, scale=k**-0.5)
    arrays = {"x": _apart(x, config["row_stride"]), "weight": _apart(weight, config["weight_stride"])}
    constants: dict[str, Any] = {"pdl": config["pdl"], "given": []}
    if config["norm"]:
        arrays["norm_weight"] = weights(random, k, dtype=dtype)
        constants |= {"given": ["norm_weight"], "eps": config.get("eps", 1e-6)}
        constants |= {"weight_bias": config.get("weight_bias", 0.0), "rounded_to": dtype}
    return Call(arrays, constants)


def _apart(rows: Array, stride: int) -> Array:
    if not stride:
        return rows
    return strided(rows, stride) if stride < 1 << 16 else far_apart(rows, stride)


def inputs(config: Config, random: np.random.Generator) -> Call:
    n, dtype = config["out_features"], config["dtype"]
    call = dense_inputs(config, random, rows=n)
    others: dict[str, Array] = {}
    if config["adds"] in ("bias", "both"):
        others["bias"] = normal(random, n, dtype=config.get("bias_dtype", dtype))
    if config["adds"] in ("residual", "both"):
        residual = normal(random, config["tokens"], n, dtype=dtype)
        others["residual"] = strided(residual, n + 24) if config["weight_stride"] else residual
    constants = {**call.constants, "given": [*call.constants["given"], *others]}
    return Call({**call.arrays, **others}, constants)


def terms(call: Call) -> Array:
    """The sum of the magnitudes of what each result adds up, f64 [T, rows of the weight]."""
    wide = {name: np.abs(array.astype(np.float64)) for name, array in call.arrays.items()}
    with np.errstate(all="ignore"):
        x = wide["x"]
        if "norm_weight" in wide:
            own = call.arrays["norm_weight"].astype(np.float64)
            factor = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + call.constants["eps"])
            x = x * np.abs(own + call.constants["weight_bias"]) / factor
        return x @ wide["weight"].T + wide.get("bias", 0.0) + wide.get("residual", 0.0)


def untried(config: Config, executor: str) -> str | None:
    """Of all three twins: a weight as large as in models is for a chip."""
    rows = max(config.get(name, 0) for name in ("out_features", "intermediate", "vocab"))
    if executor == "simulate" and rows * config["in_features"] > MOST_SIMULATED:
        return f"a weight of more than {MOST_SIMULATED} elements takes too long to simulate"
    return None


def weights_of_model(shape: Shape, tokens: int) -> dict[str, Config]:
    if tokens > MOST_TOKENS:
        return {}
    heads, kv = shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    sizes = {"qkv": (shape.hidden, heads + kv), "o": (heads, shape.hidden)}
    if not shape.experts:
        sizes["down"] = (shape.intermediate, shape.hidden)
    return {
        name: BASE
        | {"tokens": tokens, "in_features": k, "out_features": n, "adds": "" if name == "qkv" else "residual"}
        for name, (k, n) in sizes.items()
    }


def bytes_moved(config: Config) -> int:
    tokens, k, n = config["tokens"], config["in_features"], config["out_features"]
    elements = (tokens + n) * k + tokens * n
    elements += (n if config["adds"] in ("bias", "both") else 0) + (k if config["norm"] else 0)
    elements += tokens * n if config["adds"] in ("residual", "both") else 0
    return elements * format_named(config["dtype"]).dtype.itemsize


# 2: the tensor core adds 16 products to a sum with a few bits more than float32 has, and cuts off the rest. 4: a norm's
# factor multiplies the sum, and the chip's 1 / sqrt errs by up to two units of float32.
OUTPUTS = (Output("out", of_magnitude=2.0, floor=4.0),)
TWIN = Twin(
    "linear",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.linear:reference",
    optimized="parity.cases.linear:optimized",
    bytes_moved=bytes_moved,
    weights_of_model=weights_of_model,
    untried=untried,
    magnitudes=lambda call: [terms(call)],
)

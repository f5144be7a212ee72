"""gated_linear: gate and up projections and the activation, for up to 64 rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.arguments import HALVES
from optimized.kernels import gated_linear as panel
from parity.cases.linear import FEW_ROWS, MOST_TOKENS, dense_inputs, for_optimized, for_reference, terms, untried
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import gated_linear as reference_panel
from reference.kernels import linear as reference_linear
from reference.model.config import ACTIVATIONS

BASE: dict[str, Any] = {
    "tokens": 4,
    "in_features": 320,
    "intermediate": 40,
    "dtype": "bfloat16",
    "kind": "silu",
    "norm": False,
    "pdl": False,
    "rows": "normal",
    "row_stride": 0,
    "weight_stride": 0,
}


def corners() -> Iterator[Config]:
    for tokens in FEW_ROWS:
        yield BASE | {"tokens": tokens}
        yield BASE | {"tokens": tokens, "norm": True, "pdl": True}
    for dtype in HALVES:
        for kind in ACTIVATIONS:
            yield BASE | {"tokens": 20, "dtype": dtype, "kind": kind, "pdl": True}
        for rows in ("nan", "inf", "zeros", "tiny"):
            yield BASE | {"tokens": 20, "dtype": dtype, "rows": rows}
    for k in (8, 64, 99, 100, 1000):
        yield BASE | {"tokens": 3, "in_features": k, "intermediate": 33}
    for size in (1, 7, 8, 9, 24, 259):
        yield BASE | {"tokens": 5, "in_features": 136, "intermediate": size, "pdl": size > 8}
    yield BASE | {"norm": True, "eps": 0.25, "weight_bias": 1.0}
    for row_stride in (960, 324, 321):
        yield BASE | {"tokens": 9, "row_stride": row_stride, "weight_stride": 3 * row_stride, "out_stride": row_stride}
    for offset in (1, 8, {"x": 1}, {"weight": 1}, {"out": 1}):
        yield BASE | {"offset": offset}
    yield BASE | {"norm": True, "offset": {"norm_weight": 1}}
    # More than 2^31 elements, to the last row of the weight.
    yield BASE | {"tokens": 3, "in_features": 64, "intermediate": 34, "weight_stride": 1 << 25}
    for tokens in (1, 13, 32, 64):
        for k, size in ((4096, 12288), (1024, 3072), (4096, 3072)):
            yield BASE | {"tokens": tokens, "in_features": k, "intermediate": size, "pdl": tokens < 32}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 64),
        "in_features": st.integers(1, 60).map(lambda count: 8 * count) | st.integers(1, 400),
        "intermediate": st.integers(1, 80),
        "dtype": st.just("bfloat16"),
        "kind": st.sampled_from(ACTIVATIONS),
        "norm": st.booleans(),
        "pdl": st.booleans(),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "row_stride": st.just(0),
        "weight_stride": st.just(0),
    }
)


def reference(x: Array, weight: Array, *others: Array, given: list[str], **constants: Any) -> Array:
    named = dict(zip(given, others, strict=True))
    return reference_panel.gated_linear(x, weight, **named, **for_reference(constants))


def optimized(x: Any, weight: Any, *others: Any, given: list[str], **constants: Any) -> Any:
    named = dict(zip(given, others, strict=True))
    return panel.gated_linear(x, weight, **named, **for_optimized(constants), invariant=True)


def inputs(config: Config, random: np.random.Generator) -> Call:
    call = dense_inputs(config, random, rows=2 * config["intermediate"])
    return Call(call.arrays, {**call.constants, "kind": config["kind"]})


def magnitudes(call: Call) -> list[Array]:
    """What errors of both sums by their terms come to: no activation is steeper than 1.13, nor larger than its gate."""
    of_terms, size = terms(call), len(call.arrays["weight"]) // 2
    wide = {name: array.astype(np.float64) for name, array in call.arrays.items()}
    norm = {name: call.constants[name] for name in ("eps", "weight_bias") if name in call.constants}
    with np.errstate(all="ignore"):
        both = np.abs(reference_linear.product(wide["x"], wide["weight"], wide.get("norm_weight"), **norm))
        return [1.13 * of_terms[:, :size] * both[:, size:] + both[:, :size] * of_terms[:, size:]]


def weights_of_model(shape: Shape, tokens: int) -> dict[str, Config]:
    if shape.experts or tokens > MOST_TOKENS:
        return {}
    config = BASE | {"tokens": tokens, "in_features": shape.hidden, "intermediate": shape.intermediate}
    return {"gate_up": config}


def bytes_moved(config: Config) -> int:
    tokens, k, size = config["tokens"], config["in_features"], config["intermediate"]
    elements = (tokens + 2 * size) * k + tokens * size + (k if config["norm"] else 0)
    return elements * format_named(config["dtype"]).dtype.itemsize


# 2: see `linear`. 12: so do the factors of both sums; exp and a reciprocal are approximations, of a few units of
# float32.
OUTPUTS = (Output("out", of_magnitude=2.0, floor=12.0),)
TWIN = Twin(
    "gated_linear",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.gated_linear:reference",
    optimized="parity.cases.gated_linear:optimized",
    bytes_moved=bytes_moved,
    weights_of_model=weights_of_model,
    untried=untried,
    magnitudes=magnitudes,
)

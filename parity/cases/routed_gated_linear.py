"""routed_gated_linear: few tokens of any experts, as the router chose them.

Rows of experts that are elsewhere are not written: `out` is an input of the case, which must come back with them as
they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.arguments import HALVES
from optimized.kernels import routed_gated_linear as optimized_panel
from optimized.kernels.few_rows_routed import MOST_PAIRS
from parity.cases.grouped_linear import expert_weights, rows_apart, sizes_of_model
from parity.cases.moe_dispatch import ROUTINGS, choices
from parity.inputs import normal, spoiled
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import routed_gated_linear as reference_panel
from reference.kernels.activation import gated_activation
from reference.model.config import ACTIVATIONS

BASE: dict[str, Any] = {
    "tokens": 11,
    "per_token": 3,
    "experts": 8,
    "routing": "even",
    "in_features": 256,
    "out_features": 64,
    "dtype": "bfloat16",
    "rows": "normal",
    "row_stride": 0,
    "pdl": False,
    "kind": "silu",
}


def corners() -> Iterator[Config]:
    for dtype in HALVES:
        for tokens in (1, 2, 9, 33):
            yield BASE | {"tokens": tokens, "dtype": dtype, "pdl": tokens % 2 > 0}
        for kind in ACTIVATIONS:
            yield BASE | {"kind": kind, "dtype": dtype, "tokens": 20}
        yield BASE | {"rows": "nan", "dtype": dtype, "tokens": 20}
    yield BASE | {"tokens": 0}
    for routing in ROUTINGS:
        yield BASE | {"routing": routing, "tokens": 13}
    # All pairs that there may be; more experts than threads; one.
    yield BASE | {"tokens": 64, "per_token": 8, "in_features": 64, "out_features": 8}
    yield BASE | {
        "tokens": 64,
        "per_token": 8,
        "experts": 300,
        "routing": "invalid",
        "in_features": 64,
        "out_features": 8,
    }
    yield BASE | {"tokens": 64, "per_token": 8, "experts": 16, "routing": "one", "in_features": 64, "out_features": 8}
    yield BASE | {"experts": 1, "per_token": 1, "tokens": 40, "pdl": True}
    for k in (8, 99, 264, 1096):
        for n in (1, 33, 200):
            yield BASE | {"in_features": k, "out_features": n, "pdl": k % 8 > 0}
    for stride in (272, 259):
        yield BASE | {"row_stride": stride}
        yield BASE | {"weight_stride": stride}
    for offset in (1, 8, {"x": 1}, {"weight": 1}, {"expert_ids": 1}, {"out": 1}):
        yield BASE | {"offset": offset}
    yield BASE | {"tokens": 3, "experts": 16, "per_token": 8, "in_features": 2048, "out_features": 768, "pdl": True}
    yield BASE | {"tokens": 60, "row_stride": 1 << 26}
    yield BASE | {
        "tokens": 1,
        "experts": 1,
        "per_token": 32,
        "routing": "one",
        "in_features": 64,
        "out_features": 24,
    }


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 40),
        "per_token": st.integers(1, 8),
        "experts": st.integers(8, 20),
        "routing": st.sampled_from(ROUTINGS),
        "in_features": st.integers(1, 70).map(lambda count: 8 * count) | st.integers(1, 600),
        "out_features": st.integers(1, 130),
        "dtype": st.sampled_from(HALVES),
        "rows": st.sampled_from(["normal", "nan"]),
        "row_stride": st.just(0),
        "pdl": st.booleans(),
        "kind": st.sampled_from(ACTIVATIONS),
    }
)


def is_here(expert_ids: Array, num_experts: int) -> Array:
    return (expert_ids >= 0) & (expert_ids < num_experts)


def weight_of(config: Config, random: np.random.Generator, expert_ids: Array, features: int) -> Array:
    """[E, features, K]; see `expert_weights`."""
    here = expert_ids[is_here(expert_ids, config["experts"])]
    return expert_weights(config, random, np.bincount(here, minlength=config["experts"]), features)


def inputs(config: Config, random: np.random.Generator) -> Call:
    ids = choices(config, random)
    x = spoiled(random, normal(random, config["tokens"], config["in_features"], dtype=config["dtype"]), config["rows"])
    weight = weight_of(config, random, ids, 2 * config["out_features"])
    out = normal(random, *ids.shape, config["out_features"], dtype=config["dtype"])
    arrays = {"x": rows_apart(x, config), "weight": weight, "expert_ids": ids, "out": out}
    return Call(arrays, {name: config[name] for name in ("kind", "pdl")})


def reference(x: Array, weight: Array, expert_ids: Array, out: Array, *, kind: str, pdl: bool) -> Array:
    gated = reference_panel.routed_gated_linear(x, weight, expert_ids, kind=kind)
    return np.where(is_here(expert_ids, len(weight))[..., None], gated, out)


def optimized(x: Any, weight: Any, expert_ids: Any, out: Any, *, kind: str, pdl: bool) -> Any:
    return optimized_panel.routed_gated_linear(x, weight, expert_ids, kind=kind, pdl=pdl, out=out)


def magnitudes(call: Call) -> list[Array]:
    """What an error of each product by its sum |x w| becomes: the slope of no activation is above 1.13."""
    x, weight, ids, out = call.arrays.values()
    found, half = np.zeros(out.shape), out.shape[-1]
    with np.errstate(all="ignore"):
        for token, k in np.argwhere(is_here(ids, len(weight))):
            row, factors = x[token].astype(np.float64), weight[ids[token, k]].astype(np.float64)
            both, terms = factors @ row, np.abs(factors) @ np.abs(row)
            gate, up = both[:half], both[half:]
            activated = gated_activation(gate, np.ones_like(gate), kind=call.constants["kind"])
            found[token, k] = 1.13 * terms[:half] * np.abs(up) + np.abs(activated) * terms[half:]
    return [found]


def of_model(shape: Shape, tokens: int) -> Config | None:
    if sizes_of_model(shape, tokens) is None or tokens * shape.top_k > MOST_PAIRS:
        return None
    sizes = {"tokens": tokens, "per_token": shape.top_k, "experts": shape.experts, "pdl": True}
    return BASE | sizes | {"in_features": shape.hidden, "out_features": shape.intermediate}


def hit_of(config: Config) -> int:
    """Experts that are hit were each token's drawn at random, which "even" does."""
    share = config["per_token"] / config["experts"]
    return round(config["experts"] * (1 - (1 - share) ** config["tokens"]))


def bytes_moved(config: Config) -> int:
    """The weights of experts that are hit, each token, and a row for each pair."""
    tokens, channels, features = config["tokens"], config["in_features"], config["out_features"]
    pairs = tokens * config["per_token"]
    elements = hit_of(config) * 2 * features * channels + tokens * channels + pairs * features
    return elements * format_named(config["dtype"]).dtype.itemsize + 4 * pairs


# 2: tensor cores add groups of 16 products with a few bits more than float32 has, and cut the rest off. 4: exp and the
# reciprocal are the chip's approximations.
OUTPUTS = (Output("out", of_magnitude=2.0, floor=4.0, in_place="out"),)
TWIN = Twin(
    "routed_gated_linear",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.routed_gated_linear:reference",
    optimized="parity.cases.routed_gated_linear:optimized",
    bytes_moved=bytes_moved,
    of_model=of_model,
    unshared={"expert_ids": choices},
    magnitudes=magnitudes,
)

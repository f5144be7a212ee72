"""routed_linear: few tokens of any experts, whose results are weighted and added; one alone, and several."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from optimized.arguments import HALVES
from parity.cases import routed_gated_linear as gated
from parity.cases.grouped_linear import rows_apart
from parity.cases.moe_dispatch import ROUTINGS, choices
from parity.inputs import normal, spoiled
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import routed_linear as reference_panel

BASE = {name: value for name, value in gated.BASE.items() if name != "kind"} | {"residual": True}


def corners() -> Iterator[Config]:
    for dtype in HALVES:
        for tokens in (1, 2, 9, 33):
            for residual in (False, True):
                pdl = residual == (tokens % 2 > 0)
                yield BASE | {"tokens": tokens, "dtype": dtype, "pdl": pdl, "residual": residual}
        yield BASE | {"rows": "nan", "dtype": dtype, "tokens": 20}
    yield BASE | {"tokens": 0}
    for routing in ROUTINGS:
        yield BASE | {"routing": routing, "tokens": 13}
        yield BASE | {"routing": routing, "tokens": 1, "per_token": 8, "residual": routing == "none"}
    yield BASE | {"routing": "none", "tokens": 1, "residual": False, "pdl": True}
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
    yield BASE | {"experts": 1, "per_token": 1, "tokens": 40, "pdl": True}
    yield BASE | {"experts": 1, "per_token": 1, "tokens": 1, "pdl": True}
    for tokens in (1, 4):
        for k in (8, 99, 264, 1096):
            yield BASE | {"tokens": tokens, "in_features": k, "out_features": 200, "pdl": k % 8 > 0}
        for n in (1, 33, 2200):
            yield BASE | {"tokens": tokens, "in_features": 264, "out_features": n}
        yield BASE | {"tokens": tokens, "row_stride": 3 * 256 + 8}
        yield BASE | {"tokens": tokens, "row_stride": 3 * 256 + 3, "weight_stride": 259}
        alone = ("x", "weight", "expert_ids", "expert_weights", "residual", "out")
        for offset in (1, 8, *({name: 1} for name in alone)):
            yield BASE | {"tokens": tokens, "offset": offset}
        yield BASE | {"tokens": tokens, "out_stride": 67}
        yield BASE | {
            "tokens": tokens,
            "experts": 16,
            "per_token": 8,
            "in_features": 768,
            "out_features": 2048,
            "pdl": True,
        }
    yield BASE | {"tokens": 60, "row_stride": 1 << 26}
    yield BASE | {
        "tokens": 1,
        "experts": 1,
        "per_token": 32,
        "routing": "one",
        "in_features": 64,
        "out_features": 24,
    }


space = st.tuples(gated.space, st.booleans()).map(
    lambda parts: {name: value for name, value in parts[0].items() if name != "kind"} | {"residual": parts[1]}
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    """Rows and weights of experts that are elsewhere are NaN."""
    ids, dtype = choices(config, random), config["dtype"]
    here = gated.is_here(ids, config["experts"])
    x = spoiled(random, normal(random, *ids.shape, config["in_features"], dtype=dtype), config["rows"])
    x[~here] = np.nan
    expert_weights = random.uniform(0.1, 1.0, ids.shape).astype(np.float32)
    expert_weights[~here] = np.nan
    weight = gated.weight_of(config, random, ids, config["out_features"])
    arrays = {"x": rows_apart(x, config), "weight": weight, "expert_ids": ids, "expert_weights": expert_weights}
    if config["residual"]:
        arrays["residual"] = normal(random, config["tokens"], config["out_features"], dtype=dtype)
    return Call(arrays, {"pdl": config["pdl"]})


def reference(*arrays: Array, pdl: bool) -> Array:
    return reference_panel.routed_linear(*arrays)


def magnitudes(call: Call) -> list[Array]:
    """sum |factor x w| over all experts of a token."""
    x, weight, ids, expert_weights = list(call.arrays.values())[:4]
    found = np.zeros((len(x), weight.shape[1]))
    with np.errstate(all="ignore"):
        for token, k in np.argwhere(gated.is_here(ids, len(weight))):
            terms = np.abs(weight[ids[token, k]].astype(np.float64)) @ np.abs(x[token, k].astype(np.float64))
            found[token] += expert_weights[token, k] * terms
    return [found]


def of_model(shape: Shape, tokens: int) -> Config | None:
    sizes = gated.of_model(shape, tokens)
    if sizes is None:
        return None
    swapped = {"in_features": sizes["out_features"], "out_features": sizes["in_features"], "residual": False}
    return {name: value for name, value in sizes.items() if name != "kind"} | swapped


def bytes_moved(config: Config) -> int:
    """The weights of experts that are hit, a row for each pair, and each token's result."""
    tokens, channels, features = config["tokens"], config["in_features"], config["out_features"]
    pairs = tokens * config["per_token"]
    elements = gated.hit_of(config) * features * channels + pairs * channels
    elements += tokens * features * (2 if config["residual"] else 1)
    return elements * format_named(config["dtype"]).dtype.itemsize + 8 * pairs


# 2: as for `routed_gated_linear`.
OUTPUTS = (Output("out", of_magnitude=2.0),)
TWIN = Twin(
    "routed_linear",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.routed_linear:reference",
    bytes_moved=bytes_moved,
    of_model=of_model,
    unshared={"expert_ids": choices},
    magnitudes=magnitudes,
)

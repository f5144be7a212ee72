"""grouped_linear: few rows of any of many experts, padded to a tile or not.

Rows that no expert has are not written: `out` is an input of the case, which must come back with them as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.arguments import HALVES
from optimized.kernels import grouped_linear as optimized_panel
from parity.inputs import far_apart, normal, spoiled, strided
from parity.shape import MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import grouped_linear as reference_panel

SPREADS = ("even", "uneven")
MOST_POISONED = 1 << 22  # elements of a weight up to which experts that are not hit hold NaN, and not only 0
BASE: dict[str, Any] = {
    "pairs": 27,  # rows that experts have, padding apart
    "experts": 8,
    "hit": 5,  # experts that have rows, if there are so many rows
    "spread": "even",
    "tile": 1,  # to which the rows of an expert are padded
    "rest": 3,  # rows beyond the last expert
    "in_features": 256,
    "out_features": 64,
    "dtype": "bfloat16",
    "rows": "normal",
    "row_stride": 0,
    "pdl": False,
}


def corners() -> Iterator[Config]:
    for dtype in HALVES:
        for pairs in (1, 2, 8, 9, 40, 100):
            yield BASE | {"pairs": pairs, "dtype": dtype}
            yield BASE | {"pairs": pairs, "dtype": dtype, "hit": 1, "pdl": True}
        yield BASE | {"pairs": 60, "spread": "uneven", "hit": 6, "dtype": dtype, "pdl": True}
        yield BASE | {"rows": "nan", "dtype": dtype}
    yield BASE | {"pairs": 0}
    yield BASE | {"pairs": 0, "rest": 0}
    yield BASE | {"rest": 0}
    # One row for each of all experts; more experts than threads; a list of several chunks an expert.
    for experts in (1, 8, 128, 129, 512):
        yield BASE | {"pairs": experts, "experts": experts, "hit": experts, "in_features": 64, "out_features": 16}
        yield BASE | {
            "pairs": 3 * experts // 2,
            "experts": experts,
            "hit": experts // 3,
            "in_features": 64,
            "pdl": True,
        }
    yield BASE | {"pairs": 300, "experts": 16, "hit": 3, "in_features": 64, "spread": "uneven"}
    yield BASE | {"pairs": 512, "experts": 8, "hit": 8, "in_features": 64, "rest": 0}  # 64 each: no more is taken
    for tile in (8, 16, 64):
        yield BASE | {"tile": tile, "pairs": 30}
        yield BASE | {"tile": tile, "pairs": 30, "spread": "uneven", "pdl": True}
    # Sizes that fill neither a warp's chunk nor a tile, and accesses of each width.
    for k in (8, 64, 96, 100, 98, 99, 264, 768, 1096):
        for n in (1, 33, 200):
            yield BASE | {"in_features": k, "out_features": n, "pdl": k % 8 > 0}
    for stride in (272, 260, 259):
        yield BASE | {"row_stride": stride}
        yield BASE | {"weight_stride": stride}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"x": 1}, {"weight": 1}, {"expert_offsets": 1}, {"out": 1}):
        yield BASE | {"offset": offset}
    # As large as layers of models are, which a chip takes; more than 2^31 elements to the last row of x.
    yield BASE | {"pairs": 64, "experts": 16, "hit": 13, "in_features": 768, "out_features": 2048, "pdl": True}
    yield BASE | {"pairs": 8, "experts": 8, "hit": 8, "in_features": 1536, "out_features": 4096}
    yield BASE | {"pairs": 60, "row_stride": 1 << 26}


space = st.fixed_dictionaries(
    {
        "pairs": st.integers(0, 90),
        "experts": st.integers(1, 20),
        "hit": st.integers(1, 20),
        "spread": st.sampled_from(SPREADS),
        "tile": st.sampled_from([1, 8]),
        "rest": st.integers(0, 9),
        "in_features": st.integers(1, 70).map(lambda count: 8 * count) | st.integers(1, 600),
        "out_features": st.integers(1, 130),
        "dtype": st.sampled_from(HALVES),
        "rows": st.sampled_from(["normal", "nan"]),
        "row_stride": st.just(0),
        "pdl": st.booleans(),
    }
)


def counts(config: Config, random: np.random.Generator) -> Array:
    """i64 [E]: rows of each expert, padding apart. "even" is as even as it goes."""
    pairs, experts = config["pairs"], config["experts"]
    hit = min(config["hit"], experts, pairs)
    of_experts = np.zeros(experts, np.int64)
    if hit > 0:
        of_hit = np.full(hit, pairs // hit)
        of_hit[: pairs % hit] += 1
        if config["spread"] == "uneven":
            popular = random.random(hit) ** 3 + 1e-3
            of_hit = 1 + random.multinomial(pairs - hit, popular / popular.sum())
        of_experts[random.permutation(experts)[:hit]] = of_hit
    return of_experts


def offsets_of(of_experts: Array, tile: int) -> Array:
    """i32 [E + 1], as `moe_dispatch` gives them."""
    return np.concatenate([[0], np.cumsum(-(-of_experts // tile) * tile)]).astype(np.int32)


def offsets(config: Config, random: np.random.Generator) -> Array:
    return offsets_of(counts(config, random), config["tile"])


def is_row(of_experts: Array, expert_offsets: Array, num_rows: int) -> Array:
    """bool [rows]: false for padding, and beyond the last expert."""
    found = np.zeros(num_rows, bool)
    for first, count in zip(expert_offsets[:-1], of_experts, strict=True):
        found[first : first + count] = True
    return found


def num_rows_of(config: Config, expert_offsets: Array) -> int:
    return -(-(int(expert_offsets[-1]) + config["rest"]) // config["tile"]) * config["tile"]


def expert_weights(config: Config, random: np.random.Generator, of_experts: Array, features: int) -> Array:
    """[E, features, K]. The weight of an expert without rows is NaN, or takes no memory if it is large."""
    shape = len(of_experts), features, config["in_features"]
    weight = np.zeros(shape, format_named(config["dtype"]).dtype)
    if weight.size <= MOST_POISONED:
        weight[:] = np.nan
    for expert in np.flatnonzero(of_experts):
        weight[expert] = normal(random, *shape[1:], dtype=config["dtype"], scale=2 / shape[2] ** 0.5)
    if "weight_stride" in config:
        flat = strided(weight.reshape(-1, shape[2]), config["weight_stride"])
        weight = flat.reshape(shape, copy=False)
    return weight


def rows_apart(x: Array, config: Config) -> Array:
    stride = config["row_stride"]
    if not stride:
        return x
    return strided(x, stride) if stride < 1 << 16 else far_apart(x, stride)


def inputs(config: Config, random: np.random.Generator) -> Call:
    """Padding rows are 0, as a dispatch leaves them; rows beyond the last expert are NaN."""
    of_experts = counts(config, random)
    expert_offsets = offsets_of(of_experts, config["tile"])
    num_rows = num_rows_of(config, expert_offsets)
    x = spoiled(random, normal(random, num_rows, config["in_features"], dtype=config["dtype"]), config["rows"])
    x[~is_row(of_experts, expert_offsets, num_rows)] = 0
    x[expert_offsets[-1] :] = np.nan
    weight = expert_weights(config, random, of_experts, config["out_features"])
    out = normal(random, num_rows, config["out_features"], dtype=config["dtype"])
    arrays = {"x": rows_apart(x, config), "weight": weight, "expert_offsets": expert_offsets, "out": out}
    return Call(arrays, {"tile": config["tile"], "pdl": config["pdl"]})


def reference(x: Array, weight: Array, expert_offsets: Array, out: Array, *, tile: int, pdl: bool) -> Array:
    products = reference_panel.grouped_linear(x, weight, expert_offsets, tile=tile)
    is_there = np.arange(len(x)) < expert_offsets[-1]
    return np.where(is_there[:, None], products, out)


def optimized(x: Any, weight: Any, expert_offsets: Any, out: Any, *, tile: int, pdl: bool) -> Any:
    return optimized_panel.grouped_linear(x, weight, expert_offsets, pdl=pdl, out=out)


def magnitudes(call: Call) -> list[Array]:
    """sum |x w|, expert by expert; 0 beyond the last."""
    x, weight, expert_offsets = (call.arrays[name] for name in ("x", "weight", "expert_offsets"))
    found = np.zeros((len(x), weight.shape[1]))
    with np.errstate(all="ignore"):
        for expert in np.flatnonzero(np.diff(expert_offsets)):
            part = slice(expert_offsets[expert], expert_offsets[expert + 1])
            found[part] = np.abs(x[part].astype(np.float64)) @ np.abs(weight[expert].astype(np.float64)).T
    return [found]


def sizes_of_model(shape: Shape, tokens: int) -> dict[str, Any] | None:
    """What a decode step's routing is like, were each token's experts drawn at random: so many are hit."""
    if not shape.experts or tokens > MOST_DECODES:
        return None
    pairs = tokens * shape.top_k
    hit = round(shape.experts * (1 - (1 - shape.top_k / shape.experts) ** tokens))
    return {"pairs": pairs, "experts": shape.experts, "hit": min(hit, pairs), "rest": 0, "pdl": True}


def of_model(shape: Shape, tokens: int) -> Config | None:
    sizes = sizes_of_model(shape, tokens)
    if sizes is None:
        return None
    return BASE | sizes | {"in_features": shape.intermediate, "out_features": shape.hidden}


def bytes_moved(config: Config) -> int:
    """The weights of experts that are hit, and rows that they have."""
    pairs, channels, features = config["pairs"], config["in_features"], config["out_features"]
    hit = min(config["hit"], config["experts"], pairs)
    elements = hit * features * channels + pairs * (channels + features)
    return elements * format_named(config["dtype"]).dtype.itemsize + 4 * (config["experts"] + 1)


# 2: tensor cores add groups of 16 products with a few bits more than float32 has, and cut the rest off.
OUTPUTS = (Output("out", of_magnitude=2.0, in_place="out"),)
TWIN = Twin(
    "grouped_linear",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.grouped_linear:reference",
    optimized="parity.cases.grouped_linear:optimized",
    bytes_moved=bytes_moved,
    of_model=of_model,
    unshared={"expert_offsets": offsets},
    magnitudes=magnitudes,
)

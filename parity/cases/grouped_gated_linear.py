"""grouped_gated_linear: few tokens of any of many experts, gathered by their number.

Padding and rows that no expert has are not written: `out` is an input of the case, which must come back with them as
they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.arguments import HALVES
from optimized.kernels import grouped_gated_linear as optimized_panel
from parity.cases import grouped_linear as ungated
from parity.inputs import normal, spoiled
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import grouped_gated_linear as reference_panel
from reference.kernels.activation import gated_activation
from reference.kernels.moe_dispatch import gather_rows
from reference.model.config import ACTIVATIONS

# out_features: of gate, and of up. tokens: each pair is one of these, drawn at random.
BASE = ungated.BASE | {"tokens": 6, "kind": "silu"}


def corners() -> Iterator[Config]:
    for dtype in HALVES:
        for tokens, pairs in ((1, 1), (1, 5), (8, 8), (9, 9), (30, 60), (64, 100)):
            yield BASE | {"tokens": tokens, "pairs": pairs, "dtype": dtype}
            yield BASE | {"tokens": tokens, "pairs": pairs, "dtype": dtype, "hit": 1, "pdl": True}
        yield BASE | {"pairs": 60, "spread": "uneven", "hit": 6, "dtype": dtype, "pdl": True}
        yield BASE | {"rows": "nan", "dtype": dtype}
        for kind in ACTIVATIONS:
            yield BASE | {"kind": kind, "dtype": dtype, "tokens": 20, "pairs": 40}
    yield BASE | {"pairs": 0}
    yield BASE | {"pairs": 0, "rest": 0}
    yield BASE | {"tokens": 0, "pairs": 0, "rest": 0}
    yield BASE | {"rest": 0}
    for experts in (1, 8, 128, 512):
        yield BASE | {"pairs": experts, "experts": experts, "hit": experts, "in_features": 64, "out_features": 16}
    # More rows than those whose tokens are in shared memory.
    yield BASE | {"pairs": 1100, "experts": 64, "hit": 40, "in_features": 64, "out_features": 8}
    for tile in (8, 64):
        yield BASE | {"tile": tile, "pairs": 30, "tokens": 12}
        yield BASE | {"tile": tile, "pairs": 30, "spread": "uneven", "pdl": True}
    for k in (8, 64, 100, 98, 99, 264, 1096):
        for n in (1, 33, 200):
            yield BASE | {"in_features": k, "out_features": n, "pdl": k % 8 > 0}
    for stride in (272, 260, 259):
        yield BASE | {"row_stride": stride}
        yield BASE | {"weight_stride": stride}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"x": 1}, {"weight": 1}, {"expert_offsets": 1, "src_token": 2}, {"out": 1}):
        yield BASE | {"offset": offset}
    # As large as layers of models are, which a chip takes; more than 2^31 elements to the last token.
    yield BASE | {
        "tokens": 8,
        "pairs": 64,
        "experts": 16,
        "hit": 13,
        "in_features": 2048,
        "out_features": 768,
        "pdl": True,
    }
    yield BASE | {"tokens": 1, "pairs": 8, "experts": 8, "hit": 8, "in_features": 4096, "out_features": 1536}
    yield BASE | {"tokens": 60, "pairs": 90, "row_stride": 1 << 26}


space = st.tuples(ungated.space, st.integers(1, 40), st.sampled_from(ACTIVATIONS)).map(
    lambda parts: {**parts[0], "tokens": parts[1], "kind": parts[2]}
)


def tokens_of(config: Config, random: np.random.Generator, of_experts: Array, expert_offsets: Array) -> Array:
    """i32 [rows]: -1 on padding, and beyond the last expert."""
    num_rows = ungated.num_rows_of(config, expert_offsets)
    is_row = ungated.is_row(of_experts, expert_offsets, num_rows)
    return np.where(is_row, random.integers(0, max(1, config["tokens"]), num_rows), -1).astype(np.int32)


def inputs(config: Config, random: np.random.Generator) -> Call:
    of_experts = ungated.counts(config, random)
    expert_offsets = ungated.offsets_of(of_experts, config["tile"])
    src_token = tokens_of(config, random, of_experts, expert_offsets)
    x = spoiled(random, normal(random, config["tokens"], config["in_features"], dtype=config["dtype"]), config["rows"])
    weight = ungated.expert_weights(config, random, of_experts, 2 * config["out_features"])
    out = normal(random, len(src_token), config["out_features"], dtype=config["dtype"])
    x = ungated.rows_apart(x, config)
    arrays = {"x": x, "weight": weight, "expert_offsets": expert_offsets, "src_token": src_token, "out": out}
    return Call(arrays, {name: config[name] for name in ("tile", "kind", "pdl")})


def reference(
    x: Array, weight: Array, expert_offsets: Array, src_token: Array, out: Array, *, tile: int, kind: str, pdl: bool
) -> Array:
    if not len(x):
        return out
    gated = reference_panel.grouped_gated_linear(x, weight, expert_offsets, src_token, tile=tile, kind=kind)
    return np.where(src_token[:, None] >= 0, gated, out)


def optimized(
    x: Any, weight: Any, expert_offsets: Any, src_token: Any, out: Any, *, tile: int, kind: str, pdl: bool
) -> Any:
    return optimized_panel.grouped_gated_linear(x, weight, expert_offsets, src_token, kind=kind, pdl=pdl, out=out)


def magnitudes(call: Call) -> list[Array]:
    """What an error of each product by its sum |x w| becomes: the slope of no activation is above 1.13."""
    x, weight, expert_offsets, src_token, out = call.arrays.values()
    found = np.zeros(out.shape)
    if not len(x):
        return [found]
    half = out.shape[-1]
    with np.errstate(all="ignore"):
        rows = gather_rows(x, src_token).astype(np.float64)
        for expert in np.flatnonzero(np.diff(expert_offsets)):
            part = slice(expert_offsets[expert], expert_offsets[expert + 1])
            factors = weight[expert].astype(np.float64).T
            both, terms = rows[part] @ factors, np.abs(rows[part]) @ np.abs(factors)
            gate, up = both[:, :half], both[:, half:]
            activated = gated_activation(gate, np.ones_like(gate), kind=call.constants["kind"])
            found[part] = 1.13 * terms[:, :half] * np.abs(up) + np.abs(activated) * terms[:, half:]
    return [found]


def of_model(shape: Shape, tokens: int) -> Config | None:
    sizes = ungated.sizes_of_model(shape, tokens)
    if sizes is None:
        return None
    return BASE | sizes | {"tokens": tokens, "in_features": shape.hidden, "out_features": shape.intermediate}


def bytes_moved(config: Config) -> int:
    """The weights of experts that are hit, each token, and rows that experts have."""
    pairs, channels, features = config["pairs"], config["in_features"], config["out_features"]
    hit = min(config["hit"], config["experts"], pairs)
    elements = hit * 2 * features * channels + config["tokens"] * channels + pairs * features
    return elements * format_named(config["dtype"]).dtype.itemsize + 4 * (config["experts"] + 1 + pairs)


# 2: as for `grouped_linear`. 4: exp and the reciprocal of a 16-bit output are the chip's approximations.
OUTPUTS = (Output("out", of_magnitude=2.0, floor=4.0, in_place="out"),)
TWIN = Twin(
    "grouped_gated_linear",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.grouped_gated_linear:reference",
    optimized="parity.cases.grouped_gated_linear:optimized",
    bytes_moved=bytes_moved,
    of_model=of_model,
    unshared={"expert_offsets": ungated.offsets},
    magnitudes=magnitudes,
)

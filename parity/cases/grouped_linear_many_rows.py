"""grouped_linear_many_rows: experts of any number of rows, padded to a tile or not, in place or gathered.

Rows that no expert has are not written: `out` is an input of the case, which must come back with them as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.device import Tensor, device_of
from optimized.kernels import grouped_linear_many_rows as panel
from optimized.kernels.linear_many_rows import usual_choice
from optimized.libraries import QUACK, missing
from parity.cases.linear_many_rows import gated_magnitude, of_product
from parity.inputs import far_apart, normal, spoiled, strided
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels.grouped_gated_linear import grouped_gated_linear
from reference.kernels.grouped_linear import grouped_linear
from reference.kernels.moe_dispatch import gather_rows

DTYPES = ("bfloat16", "float16")
SPREADS = ("uneven", "one", "none", "even")
BASE: dict[str, Any] = {
    "tokens": 150,  # rows that experts have, padding apart
    "experts": 6,
    "channels": 72,
    "features": 136,
    "tile": 16,  # to which the rows of an expert are padded
    "spread": "uneven",
    "rest": 37,  # rows beyond the last expert, at least
    "gathers": False,
    "dtype": "bfloat16",
    "activation": None,
    "choice": "quack",  # with its usual tiles, or with those named; "torch"
    "rows": "normal",
    "row_stride": 0,
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for spread in SPREADS:
            yield BASE | {"spread": spread, "dtype": dtype}
            yield BASE | {"spread": spread, "dtype": dtype, "tile": 1, "gathers": True, "tokens": 90}
        for tile in (1, 64, 128):
            yield BASE | {"tile": tile, "dtype": dtype, "tokens": 90}
        for gathers in (False, True):
            config = {"activation": "silu", "gathers": gathers, "tile": 1 if gathers else 16, "tokens": 90}
            yield BASE | config | {"dtype": dtype, "features": 160}
        yield BASE | {"rows": "nan", "dtype": dtype}
        yield BASE | {"row_stride": 256, "dtype": dtype}
        yield BASE | {"channels": 8, "features": 8, "dtype": dtype}
    for rest in (0, 1):
        yield BASE | {"rest": rest}
    yield BASE | {"tokens": 0}
    yield BASE | {"tokens": 0, "rest": 0, "spread": "none"}
    yield BASE | {"experts": 1, "tokens": 260}
    yield BASE | {"experts": 128, "tokens": 300, "tile": 1}
    yield BASE | {"channels": 75, "row_stride": 80, "weight_stride": 88}
    for spread in SPREADS:
        yield BASE | {"spread": spread, "choice": "torch"}
    for tiles in ("128x128 2x1", "256x128 2x1", "128x64 1x1 pingpong"):
        yield BASE | {"tokens": 400, "choice": f"quack {tiles}"}
    for tiles in ("128x128 2x1", "128x64 1x1 pingpong"):
        yield BASE | {"tokens": 120, "choice": f"quack {tiles}", "gathers": True, "tile": 1}
    # As large as layers of models are, which a chip takes.
    for choice in ("quack", "torch"):
        sizes = {"tokens": 2200, "experts": 16, "tile": 128}
        yield BASE | sizes | {"channels": 2048, "features": 1536, "choice": choice}
        yield BASE | sizes | {"channels": 768, "features": 2048, "choice": choice}
    # Tensors that begin behind what memory is aligned to: all, and each alone.
    for offset in (8, {"x": 8}, {"weight": 8}, {"out": 8}, {"expert_offsets": 1}):
        yield BASE | {"offset": offset}
    yield BASE | {"gathers": True, "tile": 1, "tokens": 90, "offset": {"src_token": 1}}
    yield BASE | {"out_apart": 256}
    # More than 2^31 elements to the last row of x, and of the output.
    yield BASE | {"tokens": 60, "row_stride": 1 << 25}
    yield BASE | {"tokens": 60, "row_stride": 1 << 25, "gathers": True, "tile": 1}
    yield BASE | {"tokens": 60, "out_apart": 1 << 25}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 200),
        "experts": st.integers(1, 9),
        "channels": st.integers(1, 20).map(lambda count: 8 * count),
        "features": st.integers(1, 30).map(lambda count: 8 * count),
        "tile": st.sampled_from([1, 8, 64]),
        "spread": st.sampled_from(SPREADS),
        "rest": st.integers(0, 40),
        "gathers": st.just(False),
        "dtype": st.sampled_from(DTYPES),
        "activation": st.none(),
        "choice": st.just("quack"),
        "rows": st.sampled_from(["normal", "nan"]),
        "row_stride": st.just(0),
    }
)


def counts(config: Config, random: np.random.Generator) -> Array:
    """i64 [E]: rows of each expert, padding apart."""
    experts, tokens = config["experts"], config["tokens"]
    if config["spread"] == "none":
        return np.zeros(experts, np.int64)
    if config["spread"] == "one":
        return np.where(np.arange(experts) == experts // 2, tokens, 0)
    if config["spread"] == "even":
        return np.full(experts, tokens // experts)
    popular = random.random(experts) ** 3 * (random.random(experts) < 0.7) + 1e-9  # the rest are empty
    return random.multinomial(tokens, popular / np.sum(popular))


def inputs(config: Config, random: np.random.Generator) -> Call:
    """Padding rows are 0, as a dispatch leaves them; rows beyond the last expert are NaN."""
    of_experts, tile, dtype = counts(config, random), config["tile"], config["dtype"]
    ends = np.cumsum(-(-of_experts // tile) * tile)
    offsets = np.array([0, *ends], np.int32)
    num_rows = -(-(int(ends[-1]) + config["rest"]) // tile) * tile
    weight = normal(
        random,
        config["experts"],
        config["features"],
        config["channels"],
        dtype=dtype,
        scale=2 / config["channels"] ** 0.5,
    )
    if "weight_stride" in config:
        experts, features, channels = weight.shape
        flat = strided(weight.reshape(experts * features, channels), config["weight_stride"])
        weight = flat.reshape(experts, features, channels, copy=False)
    arrays = {}
    if config["gathers"]:
        x = spoiled(random, normal(random, 41, config["channels"], dtype=dtype), config["rows"])
        source = random.integers(0, len(x), num_rows).astype(np.int32)
        source[ends[-1] :] = -1
        arrays["src_token"] = source
    else:
        x = spoiled(random, normal(random, num_rows, config["channels"], dtype=dtype), config["rows"])
        for first, of_expert, end in zip(offsets[:-1], of_experts, ends, strict=True):
            x[first + of_expert : end] = 0
        x[ends[-1] :] = np.nan
    stride = config["row_stride"]
    if stride:
        x = strided(x, stride) if stride < 1 << 16 else far_apart(x, stride)
    outputs = config["features"] if config["activation"] is None else config["features"] // 2
    out = normal(random, num_rows, outputs, dtype=dtype)
    if "out_apart" in config:
        out = far_apart(out, config["out_apart"])
    constants = {"tile": tile, "activation": config["activation"], "choice": config["choice"]}
    return Call({"x": x, "weight": weight, "expert_offsets": offsets, "out": out, **arrays}, constants)


def reference(
    x: Array,
    weight: Array,
    expert_offsets: Array,
    out: Array,
    src_token: Array | None = None,
    *,
    tile: int,
    activation: str | None,
    choice: str,
) -> Array:
    """`grouped_linear` of rows that are gathered first, or `grouped_gated_linear`."""
    if not len(out):
        return out
    source = np.arange(len(x), dtype=np.int32) if src_token is None else src_token
    if activation is None:
        found = grouped_linear(gather_rows(x, source), weight, expert_offsets, tile=tile)
    else:
        found = grouped_gated_linear(x, weight, expert_offsets, source, tile=tile, kind=activation)
    return np.where((np.arange(len(out)) < expert_offsets[-1])[:, None], found, out)


def optimized(
    x: Tensor,
    weight: Tensor,
    expert_offsets: Tensor,
    out: Tensor,
    src_token: Tensor | None = None,
    *,
    tile: int,
    activation: str | None,
    choice: str,
) -> Tensor:
    """torch takes memory of its own."""
    if choice == "torch":
        used = int(expert_offsets[-1])
        out[:used] = panel.grouped_linear_many_rows(x, weight, expert_offsets, choice=choice)[:used]
        return out
    choice = usual_choice(device_of(x)) if choice == "quack" else choice
    named: dict[str, Any] = {"activation": activation, "choice": choice, "out": out}
    return panel.grouped_linear_many_rows(x, weight, expert_offsets, src_token, **named)


def magnitudes(call: Call) -> list[Array]:
    """As for `linear_many_rows`, expert by expert; 0 beyond the last."""
    x, weight, offsets = (call.arrays[name] for name in ("x", "weight", "expert_offsets"))
    source = call.arrays.get("src_token")
    rows = x if source is None else x[np.maximum(source, 0)]
    gated = call.constants["activation"] is not None
    found = np.zeros((len(rows), weight.shape[1] // 2 if gated else weight.shape[1]))
    with np.errstate(all="ignore"):
        for expert in np.flatnonzero(np.diff(offsets)):
            part = slice(offsets[expert], offsets[expert + 1])
            terms = of_product(*(np.abs(one.astype(np.float64)) for one in (rows[part], weight[expert])))
            found[part] = gated_magnitude(rows[part], weight[expert], terms) if gated else terms
    return [found]


def untried(config: Config, executor: str) -> str | None:
    if config["choice"] == "torch" and executor != "device":
        return "torch's grouped product comes as machine code: there is nothing to compile, and nothing to simulate"
    return None if config["choice"] in ("cublas", "torch") else missing(QUACK)


def bytes_moved(config: Config) -> int:
    """As if every expert had rows."""
    tokens, channels, features = config["tokens"], config["channels"], config["features"]
    outputs = features if config["activation"] is None else features // 2
    elements = tokens * (channels + outputs) + config["experts"] * features * channels
    return elements * format_named(config["dtype"]).dtype.itemsize


# As for `linear_many_rows`.
OUTPUTS = (Output("out", of_magnitude=2.0, floor=4.0, in_place="out"),)
TWIN = Twin(
    "grouped_linear_many_rows",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="parity.cases.grouped_linear_many_rows:reference",
    optimized="parity.cases.grouped_linear_many_rows:optimized",
    bytes_moved=bytes_moved,
    magnitudes=magnitudes,
    library=QUACK,
    untried=untried,
)

"""moe_dispatch: routing and the copy of rows, of any choice of experts, in each of its launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.inputs import far_apart, normal
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import moe_dispatch as panel

DTYPES = ("bfloat16", "float16", "float32")
ROUTINGS = ("even", "one", "few", "repeats", "invalid", "none")
BASE: dict[str, Any] = {
    "tokens": 8,
    "experts": 128,
    "per_token": 8,
    "hidden": 256,
    "tile": 16,
    "dtype": "bfloat16",
    "routing": "even",
    "row_stride": 0,
}


def reference(x: Array, expert_ids: Array, num_experts: int, *, tile: int) -> tuple[Array, ...]:
    """Routing and copy as one operation, as the optimized panel has it."""
    dispatch = panel.moe_dispatch(expert_ids, num_experts, tile=tile)
    return *dispatch, panel.gather_rows(x, dispatch.src_token)


def corners() -> Iterator[Config]:
    # Up to 128 tokens of 8 experts each block routes for itself, up to 512 blocks route together, then apart.
    for tokens in (0, 1, 3, 8, 64, 128, 129, 300, 512, 513, 4096):
        yield BASE | {"tokens": tokens}
    for tokens in (8, 100, 300, 4096):
        for routing in ROUTINGS:
            yield BASE | {"tokens": tokens, "routing": routing}
    for tokens in (7, 3000, 4200):
        for experts, per_token, tile in ((8, 1, 128), (8, 2, 16), (384, 1, 64), (384, 2, 128)):
            config = {"tokens": tokens, "experts": experts, "per_token": per_token, "tile": tile, "hidden": 64}
            yield BASE | config | {"routing": "invalid"}
    yield BASE | {"tokens": 64, "experts": 384, "tile": 64, "routing": "repeats"}
    yield BASE | {"tokens": 40, "experts": 1, "per_token": 1}
    yield BASE | {"tokens": 33, "experts": 512, "per_token": 5, "tile": 1}
    for dtype in DTYPES:
        yield BASE | {"tokens": 64, "hidden": 2048, "dtype": dtype, "tile": 64}
        yield BASE | {"tokens": 300, "hidden": 768, "dtype": dtype}
        yield BASE | {"tokens": 600, "hidden": 512, "dtype": dtype}
        yield BASE | {"tokens": 5, "hidden": 769, "dtype": dtype}
    for hidden in (1, 72, 769, 4096, 7168):
        yield BASE | {"tokens": 2, "hidden": hidden}
    for tokens in (260, 1040):
        yield BASE | {"tokens": tokens, "per_token": 4, "hidden": 769}
    for tokens in (64, 260, 520):
        yield BASE | {"tokens": tokens, "row_stride": 1024}
        yield BASE | {"tokens": tokens, "row_stride": 259}
    # Several pairs a thread.
    for experts in (8, 16):
        yield BASE | {"tokens": 32768, "experts": experts, "hidden": 16, "tile": 128, "routing": "invalid"}
    yield BASE | {"tokens": 9000, "experts": 48, "hidden": 16, "routing": "repeats"}
    yield from placed()


def placed() -> Iterator[Config]:
    """In each launch, tensors of which something is odd: where they begin, or how far apart their rows are."""
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for tokens in (64, 260, 520):
        for offset in (1, 8, {"x": 1}, {"expert_ids": 1}, {"rows": 1}, {"row_of": 1, "src_token": 2}):
            yield BASE | {"tokens": tokens, "offset": offset}
        yield BASE | {"tokens": tokens, "out_stride": {"rows": 259}}
    # More than 2^31 elements, in each launch: to the last row of x, and in the rows that are written. Few rows, so that
    # little of what lies between those of x is in this machine's memory.
    for tokens in (64, 300, 600):
        yield BASE | {"tokens": tokens, "row_stride": 8 * ((1 << 28) // tokens + (1 << 15))}
        rows = panel.dispatch_rows(tokens, BASE["per_token"], BASE["experts"], tile=BASE["tile"])
        yield BASE | {"tokens": tokens, "out_stride": {"rows": 8 * ((3 << 27) // rows)}}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 600),
        "experts": st.sampled_from([8, 128, 384]),
        "per_token": st.sampled_from([1, 2, 8]),
        "hidden": st.sampled_from([64, 256, 768]),
        "tile": st.sampled_from([16, 64, 128]),
        "dtype": st.just("bfloat16"),
        "routing": st.sampled_from(ROUTINGS),
        "row_stride": st.just(0),
    }
)


def choices(config: Config, random: np.random.Generator) -> Array:
    """i32 [T, K]: which experts each token goes to."""
    shape = tokens, per_token = config["tokens"], config["per_token"]
    experts = config["experts"]
    distinct = np.argsort(random.random((tokens, experts)), axis=1)[:, :per_token]
    ids = {
        "even": lambda: distinct,
        "one": lambda: np.full(shape, experts // 2),
        "few": lambda: random.choice([0, experts // 3, experts - 1], shape),  # the rest are empty
        "repeats": lambda: random.integers(0, experts, (tokens, 1)) + (random.random(shape) < 0.2),
        "invalid": lambda: np.where(
            random.random(shape) < 0.3, random.choice([-1, -7, experts, 2**31 - 1, -(2**31)], shape), distinct
        ),
        "none": lambda: np.full(shape, -1),
    }[config["routing"]]()
    return np.ascontiguousarray(ids).astype(np.int32)


def with_payloads(random: np.random.Generator, rows: Array) -> Array:
    """Rows of which a fifth are NaN with any sign and payload, quiet or signalling: a copy keeps each bit."""
    size = 8 * rows.dtype.itemsize
    unsigned = np.dtype(f"u{rows.dtype.itemsize}")
    infinity = np.asarray(np.inf, rows.dtype).view(unsigned)
    chosen = np.flatnonzero(random.random(len(rows)) < 0.2)
    payloads = random.integers(1, 2**size, (len(chosen), *rows.shape[1:]), unsigned)
    bits = rows.view(unsigned).copy()
    bits[chosen] = payloads | infinity | unsigned.type(1)
    return bits.view(rows.dtype)


def inputs(config: Config, random: np.random.Generator) -> Call:
    x = with_payloads(random, normal(random, config["tokens"], config["hidden"], dtype=config["dtype"]))
    if config["row_stride"]:
        x = far_apart(x, config["row_stride"])
    arrays = {"x": x, "expert_ids": choices(config, random)}
    return Call(arrays, {"num_experts": config["experts"], "tile": config["tile"]})


def of_model(shape: Shape, tokens: int) -> Config | None:
    if not shape.experts:
        return None
    return BASE | {"tokens": tokens, "experts": shape.experts, "per_token": shape.top_k, "hidden": shape.hidden}


def bytes_moved(config: Config) -> int:
    """As if all were routed. Rows of padding are not counted: nobody needs what they hold, and how many there are is a
    matter of shapes that must not depend on the routing."""
    tokens, pairs = config["tokens"], config["tokens"] * config["per_token"]
    rows = panel.dispatch_rows(tokens, config["per_token"], config["experts"], tile=config["tile"])
    size = format_named(config["dtype"]).dtype.itemsize
    return size * config["hidden"] * (tokens + pairs) + 4 * (2 * pairs + rows + config["experts"] + 1)


TWIN = Twin(
    "moe_dispatch",
    tuple(Output(name, exact=True) for name in ("expert_offsets", "src_token", "row_of", "rows")),
    corners,
    space,
    inputs,
    reference="parity.cases.moe_dispatch:reference",
    bytes_moved=bytes_moved,
    of_model=of_model,
)

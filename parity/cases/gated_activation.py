"""gated_activation: gate and up in one tensor, three activations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal, strided
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import activation

DTYPES = ("bfloat16", "float16", "float32")
KINDS = ("silu", "gelu", "gelu_pytorch_tanh")
BASE = {"tokens": 4, "intermediate": 1024, "dtype": "bfloat16", "kind": "silu", "values": "normal", "row_stride": 0}
# Gates at which an activation may go wrong: its ends, its bend, where exp leaves float32 and where x^3 does.
EDGES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-3, -1e-3, 20.0, -20.0, 88.0, -88.0, 104.0, -104.0, 3e4, -3e4)


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for kind in KINDS:
            yield BASE | {"tokens": 1, "intermediate": 3072, "dtype": dtype, "kind": kind}
            yield BASE | {"tokens": 700, "intermediate": 3072, "dtype": dtype, "kind": kind}
            for values in ("edges", "wide", "edges of up"):
                yield BASE | {"tokens": 40, "dtype": dtype, "kind": kind, "values": values}
        for tokens in (0, 1, 133):
            yield BASE | {"tokens": tokens, "intermediate": 768, "dtype": dtype}
        for intermediate in (1, 8, 72, 769):
            yield BASE | {"tokens": 7, "intermediate": intermediate, "dtype": dtype}
        yield BASE | {"tokens": 65, "dtype": dtype, "row_stride": 2560}
        yield BASE | {"tokens": 65, "dtype": dtype, "row_stride": 2051}
    for intermediate in (768, 1536, 6144, 12288):
        yield BASE | {"tokens": 1500, "intermediate": intermediate}
    yield BASE | {"tokens": 1500, "intermediate": 769}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"gate_up": 1}, {"out": 1}):
        yield BASE | {"offset": offset}
    for out_stride in (1536, 1027):
        yield BASE | {"tokens": 37, "out_stride": out_stride}
    # More than 2^31 elements, in the output too.
    yield BASE | {"tokens": 127, "intermediate": 12288, "repeated": 180001}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 300),
        "intermediate": st.integers(1, 320).map(lambda count: 8 * count) | st.integers(1, 1000),
        "dtype": st.sampled_from(DTYPES),
        "kind": st.sampled_from(KINDS),
        "values": st.sampled_from(["normal", "wide"]),
        "row_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, size, dtype = config["tokens"], config["intermediate"], config["dtype"]
    gate_up = normal(random, tokens, 2 * size, dtype=dtype)
    if config["values"] == "edges":  # each in a row of its own, beside normal ones, whatever the row's mean is
        gate_up[: len(EDGES), :size:3] = np.array(EDGES, gate_up.dtype)[:tokens, None]
        gate_up[len(EDGES) : 2 * len(EDGES), :size] = np.array(EDGES, gate_up.dtype)[: tokens - len(EDGES), None]
    elif config["values"] == "edges of up":
        gate_up[: len(EDGES), size::3] = np.array(EDGES, gate_up.dtype)[:tokens, None]
    elif config["values"] == "wide":  # the negative tail, held to its own size: no large element is near
        gate_up[:, :size] = -np.abs(gate_up[:, :size]) - np.asarray(4.0, gate_up.dtype)
    if config["row_stride"]:
        gate_up = strided(gate_up, config["row_stride"])
    repeated = {"gate_up": config["repeated"]} if "repeated" in config else {}
    return Call({"gate_up": gate_up}, {"kind": config["kind"]}, repeated)


def reference(gate_up: Array, *, kind: str) -> Array:
    """The reference takes gate and up apart."""
    size = gate_up.shape[-1] // 2
    return activation.gated_activation(gate_up[..., :size], gate_up[..., size:], kind=kind)


def of_model(shape: Shape, tokens: int) -> Config:
    return BASE | {"tokens": tokens, "intermediate": shape.intermediate}


def bytes_moved(config: Config) -> int:
    size = format_named(config["dtype"]).dtype.itemsize
    return size * 3 * config["tokens"] * config["intermediate"]


TWIN = Twin(
    "gated_activation",
    # 2 ULPs beyond the bound, for float32 in rows of a few elements: exp errs by up to 0.9 ULP here and by up to 2
    # in NumPy, four more roundings follow, and by luck the reference's own errors may cancel (of 12,000 rows of 1 and
    # 8 elements one needs 1.5). Outputs of 16 bits need none of it.
    (Output("out", floor={"float32": 2.0}),),
    corners,
    space,
    inputs,
    reference="parity.cases.gated_activation:reference",
    bytes_moved=bytes_moved,
    of_model=of_model,
)

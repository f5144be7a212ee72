"""router_top_k: ids that are the reference's whatever the logits are, ties, NaN and infinities among them."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal, strided
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named

DTYPES = ("bfloat16", "float16", "float32")
KINDS = ("normal", "ties", "zeros", "nan", "inf", "subnormal", "wide")
BASE = {
    "tokens": 37,
    "experts": 128,
    "k": 8,
    "dtype": "bfloat16",
    "normalize": True,
    "logits": "normal",
    "row_stride": 0,
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for logits in KINDS:
            yield BASE | {"dtype": dtype, "logits": logits}
            yield BASE | {"dtype": dtype, "logits": logits, "experts": 384, "k": 6, "tokens": 300, "normalize": False}
        for experts, k in ((1, 1), (5, 5), (16, 16), (33, 2), (60, 4), (127, 8), (160, 6), (200, 16), (512, 10)):
            yield BASE | {"dtype": dtype, "experts": experts, "k": k, "logits": "ties"}
        for tokens in (0, 1, 500):
            yield BASE | {"dtype": dtype, "tokens": tokens}
        yield BASE | {"dtype": dtype, "row_stride": 131}
    yield BASE | {"experts": 512, "k": 32}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"logits": 1}, {"expert_ids": 1}, {"weights": 1}):
        yield BASE | {"offset": offset}
    for out_stride in (11, {"weights": 32}):
        yield BASE | {"out_stride": out_stride}
    for tokens in (1, 133):
        yield BASE | {"tokens": tokens, "launch": {"pdl": True}}
    # More than 2^31 elements.
    yield BASE | {"tokens": 127, "experts": 512, "repeated": 4194305}


space = st.tuples(st.integers(1, 512), st.integers(1, 16)).flatmap(
    lambda size: st.fixed_dictionaries(
        {
            "tokens": st.integers(0, 300),
            "experts": st.just(size[0]),
            "k": st.just(min(size)),
            "dtype": st.sampled_from(DTYPES),
            "normalize": st.booleans(),
            "logits": st.sampled_from(KINDS),
            "row_stride": st.just(0),
        }
    )
)


def logits_of(kind: str, random: np.random.Generator, tokens: int, experts: int, dtype: str) -> Array:  # [T, E]
    """ "ties": few values, and zeros of both signs. "nan", "inf": of both signs, in some places of some rows, and in
    whole rows. "wide": as far apart as makes most weights 0."""
    logits = normal(random, tokens, experts, dtype=dtype, scale=2.0)
    if kind == "ties":
        return np.round(logits.astype(np.float32)).astype(logits.dtype)
    if kind == "zeros":
        return np.zeros_like(logits)
    if kind == "wide":
        return (logits.astype(np.float32) * 50).astype(logits.dtype)
    if kind == "subnormal":
        smallest = float(ml_dtypes.finfo(logits.dtype).smallest_subnormal)
        return (np.round(logits.astype(np.float64)) * smallest).astype(logits.dtype)
    if kind in ("nan", "inf"):
        share = random.choice([0.0, 0.02, 0.5, 0.98, 1.0], (tokens, 1))
        odd = np.copysign({"nan": np.nan, "inf": np.inf}[kind], random.standard_normal(logits.shape))
        return np.where(random.random(logits.shape) < share, odd, logits.astype(np.float64)).astype(logits.dtype)
    if kind != "normal":
        raise ValueError(f"unknown kind of logits {kind!r}")
    return logits


def inputs(config: Config, random: np.random.Generator) -> Call:
    logits = logits_of(config["logits"], random, config["tokens"], config["experts"], config["dtype"])
    if config["row_stride"]:
        logits = strided(logits, config["row_stride"])
    repeated = {"logits": config["repeated"]} if "repeated" in config else {}
    return Call({"logits": logits}, {"k": config["k"], "normalize": config["normalize"]}, repeated)


def of_model(shape: Shape, tokens: int) -> Config | None:
    return BASE | {"tokens": tokens, "experts": shape.experts, "k": shape.top_k} if shape.experts else None


def bytes_moved(config: Config) -> int:
    size = format_named(config["dtype"]).dtype.itemsize
    return config["tokens"] * (size * config["experts"] + 8 * config["k"])


# 3: the chip's exponential errs by up to two units of float32, NumPy's by one or less; on an H200 a row needs 2.9.
OUTPUTS = (Output("expert_ids", exact=True), Output("weights", floor=3.0))
TWIN = Twin("router_top_k", OUTPUTS, corners, space, inputs, bytes_moved=bytes_moved, of_model=of_model)

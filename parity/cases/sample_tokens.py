"""sample_tokens: rows of every kind of distribution, sampled in every way, in one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal, strided
from parity.near_draws import nearly_drawn
from parity.shape import MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array
from reference.kernels.sample_tokens import FEW

JUST_UNDER_1 = 1 - 2.0**-24
TEMPERATURES = (1.0, 0.7, 1e-6, 0.05, 3.0, 2.0**64)
# The ways to sample; "mixed" is each row in another, "qwen3" as the makers of that model advise.
WAYS = ("greedy", "temperature", "min_p", "few", "top_k", "top_p", "all", "not_sampled")
LIMITS = {"greedy": "none", "temperature": "none", "min_p": "none", "few": "few", "qwen3": "few", "not_sampled": "none"}
KINDS = ("normal", "flat", "peaked", "ties", "equal", "zeros", "minus_inf", "outlier", "nan", "inf", "nothing")
ODD = {"nan": np.nan, "inf": np.inf}
FORBIDS = ("nothing", "bans", "masks", "both", "all_but_one", "all")
BASE: dict[str, Any] = {
    "rows": 4,
    "vocab": 1000,
    "padding": 0,
    "way": "mixed",
    "logits": "normal",
    "forbids": "nothing",
    "adjusted": False,
    "row_stride": 0,
}


def corners() -> Iterator[Config]:
    for way in WAYS[:-1]:
        yield BASE | {"way": way}
        yield BASE | {"way": way, "vocab": 5003, "rows": 2}
    for logits in KINDS:
        yield BASE | {"logits": logits, "rows": 8}
        yield BASE | {"logits": logits, "rows": 8, "vocab": 9000}
    for forbids in FORBIDS:
        yield BASE | {"forbids": forbids, "padding": 3, "rows": 8}
    for vocab in (1, 2, 7, 31, 512, 4097):
        yield BASE | {"vocab": vocab, "rows": 8}
    for way in ("min_p", "top_k", "top_p", "all"):  # whose limits keep little: rows of two parts
        yield BASE | {"way": way, "logits": "plateau", "vocab": 10244}
    for rows in (0, 1):
        yield BASE | {"rows": rows}
    yield BASE | {"row_stride": 1003}
    for way in ("greedy", "mixed"):
        yield BASE | {"adjusted": True, "forbids": "both", "rows": 40, "way": way}
        yield BASE | {"adjusted": True, "vocab": 9000, "rows": 16, "way": way}
        yield BASE | {"vocab": 151936, "padding": 267, "rows": 8, "way": way}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    everything = BASE | {"adjusted": True, "forbids": "both"}
    for offset in (1, 8, *({name: 1} for name in ("logits", "seed", "banned_ids", "mask", "turned", "token_ids"))):
        yield everything | {"offset": offset}
    # More than 2^31 elements.
    yield BASE | {"vocab": 151936, "rows": 15, "repeated": 14145}


space = st.fixed_dictionaries(
    {
        "rows": st.integers(0, 8),
        "vocab": st.integers(1, 3000),
        "padding": st.just(0),
        "way": st.sampled_from(("mixed", *WAYS)),
        "logits": st.sampled_from(KINDS),
        "forbids": st.sampled_from(FORBIDS[:4]),
        "adjusted": st.booleans(),
        "row_stride": st.just(0),
    }
)


def logits_of(kind: str, random: np.random.Generator, rows: int, vocab: int) -> Array:  # f32 [R, V]
    logits = normal(random, rows, vocab, dtype="float32", scale=3.0)
    if kind in ("flat", "peaked"):
        logits *= np.float32({"flat": 0.125, "peaked": 20.0}[kind])
    elif kind == "ties":
        logits = np.round(logits)
    elif kind == "equal":
        logits[:] = logits[:, :1]
    elif kind == "zeros":  # of both signs
        logits = np.where(logits > 0, np.float32(0.0), np.float32(-0.0))
    elif kind == "minus_inf":
        share = random.choice([0.02, 0.5, 0.98], (rows, 1))
        logits[random.random(logits.shape) < share] = -np.inf
    elif kind == "nothing":
        logits[random.random(rows) < 0.5] = -np.inf
    elif kind == "outlier":
        logits[np.arange(rows), random.integers(0, vocab, rows)] = 5e3
    elif kind == "plateau":  # which noise decides, under one that is seldom drawn
        logits[:] = 4.0
        logits[np.arange(rows), random.integers(0, vocab, rows)] = 5.0
    elif kind in ODD:
        hit = np.flatnonzero(random.random(rows) < 0.5)
        logits[hit, random.integers(0, vocab, len(hit))] = ODD[kind]
    elif kind != "normal":
        raise ValueError(f"unknown kind of logits {kind!r}")
    return logits


def turned_of(random: np.random.Generator, logits: Array) -> Array:  # i32 [R, 2]
    """Of some rows, some logits become NaN or +inf, or all of them -inf, as if adjusted; and some have one more."""
    rows, vocab = logits.shape
    turned = np.zeros((rows, 2), np.int32)
    for row, kind in enumerate(random.choice(["none", "one", "nan", "some", "one more", "below"], rows)):
        if kind == "below":
            turned[row, 1] = np.isfinite(logits[row]).sum()
            logits[row] = -np.inf
        elif kind != "none":
            places = random.choice(vocab, min(vocab, 1 if kind == "one" else 5), replace=False)
            was_finite = np.isfinite(logits[row, places])
            logits[row, places] = np.inf
            logits[row, places[:1]] = np.nan if kind == "nan" else np.inf
            turned[row, 0] = was_finite.sum() - (kind == "one more")
    return turned


def settings_of(way: str, random: np.random.Generator, rows: int, vocab: int) -> tuple[Array, ...]:
    """temperature, top_k, top_p, min_p."""
    temperature = random.choice(TEMPERATURES, rows).astype(np.float32)
    top_k, top_p, min_p = np.zeros(rows, np.int32), np.ones(rows, np.float32), np.zeros(rows, np.float32)
    ways = random.choice(WAYS, rows) if way == "mixed" else np.full(rows, way)
    few = random.choice([1, 2, 20, FEW], rows)
    many = random.choice([FEW + 1, 100, 700, 5000, max(1, vocab - 1), vocab, vocab + 5], rows)
    shares = random.choice([0.95, 0.5, 1e-6, JUST_UNDER_1], rows)
    least = random.choice([0.05, 0.5, 1.0, 1e-9], rows)
    if way == "qwen3":  # as its makers advise
        temperature[:], few, shares = 0.6, np.full(rows, 20), np.full(rows, 0.95)
    temperature[ways == "greedy"] = 0
    temperature[ways == "not_sampled"] = -1
    of_few = (ways == "few") | (ways == "qwen3")
    top_k = np.where(of_few, few, top_k)
    top_k = np.where((ways == "top_k") | (ways == "all"), many, top_k).astype(np.int32)
    p_too = of_few & ((random.random(rows) < 0.5) | (ways == "qwen3"))
    top_p = np.where((ways == "top_p") | (ways == "all") | p_too, shares, top_p).astype(np.float32)
    min_p_too = (ways == "few") & (random.random(rows) < 0.3)
    min_p = np.where((ways == "min_p") | (ways == "all") | min_p_too, least, min_p).astype(np.float32)
    return temperature, top_k, top_p, min_p


def forbidden_of(kind: str, random: np.random.Generator, rows: int, vocab: int) -> tuple[Array, Array, Array]:
    """banned_ids, mask, mask_row."""
    banned, mask = np.zeros((rows, 0), np.int32), np.zeros((0, -(-vocab // 32)), np.uint32)
    mask_row = np.full(rows, -1, np.int32)
    if kind in ("bans", "both"):
        banned = random.integers(-1, vocab, (rows, 5), np.int32)
    if kind in ("masks", "both", "all_but_one", "all"):
        mask = random.integers(0, 2**32, (3, -(-vocab // 32)), np.uint32)
        mask_row = random.integers(-1, 3, rows).astype(np.int32)
        if kind.startswith("all"):
            mask[:] = 0
        if kind == "all_but_one":
            mask[:, random.integers(0, mask.shape[1])] = 1
    return banned, mask, mask_row


def inputs(config: Config, random: np.random.Generator) -> Call:
    rows, vocab = config["rows"], config["vocab"]
    logits = logits_of(config["logits"], random, rows, vocab)
    turned = turned_of(random, logits) if config["adjusted"] else np.zeros((rows, 0), np.int32)
    temperature, top_k, top_p, min_p = settings_of(config["way"], random, rows, vocab)
    banned, mask, mask_row = forbidden_of(config["forbids"], random, rows, vocab)
    arrays = {
        "logits": strided(logits, config["row_stride"]) if config["row_stride"] else logits,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": random.integers(0, 2**32, (rows, 2), np.uint32),
        "position": random.integers(0, 40000, rows).astype(np.int32),
        "sample_index": random.integers(0, 3, rows).astype(np.int32),
        "banned_ids": banned,
        "mask": mask,
        "mask_row": mask_row,
        "turned": turned,
    }
    constants = {
        "num_token_ids": vocab - config["padding"],
        "draws": config["way"] != "greedy",
        "limits": LIMITS.get(config["way"], "any"),
    }
    repeated = {name: config["repeated"] for name in arrays if name != "mask"} if "repeated" in config else {}
    return Call(arrays, constants, repeated)


def bytes_moved(config: Config) -> int:
    """Settings, what is forbidden and the token are counted too."""
    words = -(-config["vocab"] // 32)
    masks = 3 if config["forbids"] in ("masks", "both", "all_but_one", "all") else 0
    bans = 5 if config["forbids"] in ("bans", "both") else 0
    beside = 10 + bans + (2 if config["adjusted"] else 0)
    return 4 * (config["rows"] * (config["vocab"] + beside) + masks * words)


def ways_of_model(shape: Shape, tokens: int) -> dict[str, Config]:
    """A step of decode."""
    if tokens > MOST_DECODES:
        return {}
    base = BASE | {"rows": tokens, "vocab": shape.vocab}
    return {way: base | {"way": way} for way in ("greedy", "qwen3", "temperature", "top_p")}


TWIN = Twin(
    "sample_tokens",
    (Output("token_ids", exact=True),),
    corners,
    space,
    inputs,
    bytes_moved=bytes_moved,
    weights_of_model=ways_of_model,
    also_right=lambda call: [nearly_drawn(**call.arrays, **call.constants)],
)

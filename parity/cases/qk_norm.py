"""qk_norm: heads of q and k, contiguous or slices of one tensor, for one token to many."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from parity.inputs import normal, side_by_side, spoiled, weights
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import format_named

DTYPES = ("bfloat16", "float16", "float32")
BASE = {
    "tokens": 4,
    "heads": 32,
    "kv_heads": 4,
    "head_dim": 128,
    "dtype": "bfloat16",
    "weight_bias": 0.0,
    "rows": "normal",
    "token_stride": 0,  # of q and k in elements; 0: contiguous
}


def corners() -> Iterator[Config]:
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            # One warp a block, eight, and several heads a group.
            yield BASE | {"tokens": 1, "head_dim": head_dim, "dtype": dtype}
            yield BASE | {"tokens": 37, "head_dim": head_dim, "dtype": dtype}
            yield BASE | {"tokens": 61, "head_dim": head_dim, "dtype": dtype, "repeated": 8191}
        for rows in ("nan", "inf", "zeros", "tiny", "huge"):
            yield BASE | {"tokens": 37, "dtype": dtype, "rows": rows}
        yield BASE | {"tokens": 37, "dtype": dtype, "eps": 0.25}
    for dtype, weight_dtype in (("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")):
        yield BASE | {"tokens": 37, "dtype": dtype, "weight_dtype": weight_dtype}
    for tokens in (0, 2, 3, 133):
        yield BASE | {"tokens": tokens}
    for heads, kv_heads in ((16, 8), (64, 4), (16, 1), (7, 1), (5, 3), (1, 1)):
        yield BASE | {"tokens": 29, "heads": heads, "kv_heads": kv_heads}
        yield BASE | {"tokens": 29, "heads": heads, "kv_heads": kv_heads, "repeated": 50021}
    yield BASE | {"tokens": 300, "weight_bias": 1.0}
    # Slices of q, k and v side by side; a stride that leaves aligned accesses of two bytes alone.
    for tokens in (1, 65):
        yield BASE | {"tokens": tokens, "token_stride": 5120}
        yield BASE | {"tokens": tokens, "token_stride": 5123}
    yield BASE | {"tokens": 65, "token_stride": 15360, "heads": 64}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, {"q": 1}, {"k": 1}, {"q_weight": 1}, {"k_weight": 1}):
        yield BASE | {"offset": offset}
    # More than 2^31 elements in q.
    yield BASE | {"tokens": 61, "repeated": 524291}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 200),
        "heads": st.sampled_from([1, 4, 16, 32]),
        "kv_heads": st.sampled_from([1, 2, 8]),
        "head_dim": st.sampled_from([64, 128, 256]),
        "dtype": st.sampled_from(DTYPES),
        "weight_bias": st.just(0.0),
        "rows": st.sampled_from(["normal", "nan", "zeros"]),
        "token_stride": st.sampled_from([0, 12288]),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    tokens, head_dim, dtype = config["tokens"], config["head_dim"], config["dtype"]

    def heads(count: int) -> np.ndarray:
        rows = normal(random, tokens * count, head_dim, dtype=dtype)
        return spoiled(random, rows, config["rows"]).reshape(tokens, count, head_dim)

    q, k = heads(config["heads"]), heads(config["kv_heads"])
    if config["token_stride"]:
        q, k = side_by_side([q, k], config["token_stride"])
    arrays = {"q": q, "k": k}
    repeated = dict.fromkeys(arrays, int(config["repeated"])) if "repeated" in config else {}
    for name in ("q_weight", "k_weight"):
        arrays[name] = weights(random, head_dim, dtype=config.get("weight_dtype", dtype))
    return Call(arrays, {"eps": config.get("eps", 1e-6), "weight_bias": config["weight_bias"]}, repeated)


def of_model(shape: Shape, tokens: int) -> Config:
    sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
    return BASE | sizes | {"tokens": tokens, "token_stride": shape.token_stride}


def bytes_moved(config: Config) -> int:
    size = format_named(config["dtype"]).dtype.itemsize
    heads = config["heads"] + config["kv_heads"]
    return 2 * size * config["head_dim"] * (config["tokens"] * heads + 1)


# 1.5: the chip's 1 / sqrt errs by up to two units of float32, NumPy's root and quotient by half a unit each; on an H200
# a head needs 0.7 and 0.5 of it.
OUTPUTS = (Output("q", floor=1.5, in_place="q"), Output("k", floor=1.5, in_place="k"))
TWIN = Twin("qk_norm", OUTPUTS, corners, space, inputs, bytes_moved=bytes_moved, of_model=of_model)

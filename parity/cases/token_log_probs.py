"""token_log_probs: likeliest tokens and ranks that are the reference's whatever the logits are; log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.cases.sample_tokens import KINDS, logits_of
from parity.inputs import strided
from parity.shape import MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin

BASE: dict[str, Any] = {"rows": 4, "vocab": 1000, "num_top": 20, "logits": "normal", "row_stride": 0}


def corners() -> Iterator[Config]:
    for logits in KINDS:
        yield BASE | {"logits": logits}
        yield BASE | {"logits": logits, "vocab": 9000}
    for num_top in (0, 1, 5, 64):
        yield BASE | {"num_top": num_top}
    for vocab in (1, 2, 7, 19, 512, 4097):
        yield BASE | {"vocab": vocab}
    for rows in (0, 1):
        yield BASE | {"rows": rows}
    yield BASE | {"row_stride": 1003}
    yield BASE | {"vocab": 151936, "rows": 8}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, *({name: 1} for name in ("logits", "top_ids", "top_log_probs"))):
        yield BASE | {"offset": offset}
    for out_stride in (23, {"top_ids": 32}):
        yield BASE | {"out_stride": out_stride}
    # More than 2^31 elements.
    yield BASE | {"vocab": 151936, "rows": 15, "repeated": 14145}


space = st.fixed_dictionaries(
    {
        "rows": st.integers(0, 8),
        "vocab": st.integers(1, 3000),
        "num_top": st.integers(0, 32),
        "logits": st.sampled_from(KINDS),
        "row_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    logits = logits_of(config["logits"], random, config["rows"], config["vocab"])
    if config["row_stride"]:
        logits = strided(logits, config["row_stride"])
    token_ids = random.integers(-1, config["vocab"], config["rows"]).astype(np.int32)
    arrays = {"logits": logits, "token_ids": token_ids}
    repeated = {name: config["repeated"] for name in arrays} if "repeated" in config else {}
    return Call(arrays, {"num_top": config["num_top"]}, repeated)


def ways_of_model(shape: Shape, tokens: int) -> dict[str, Config]:
    """A step of decode: of the likeliest tokens beside the chosen one, and of that alone."""
    if tokens > MOST_DECODES:
        return {}
    base = BASE | {"rows": tokens, "vocab": shape.vocab}
    return {"top 20": base, "alone": base | {"num_top": 0}}


def bytes_moved(config: Config) -> int:
    return config["rows"] * 4 * (config["vocab"] + 3 + 2 * min(config["vocab"], config["num_top"]))


# 4: a logarithm of a sum, of which each term errs by up to 2^-22 (the chip's exponential), and NumPy's by half that.
OUTPUTS = (
    Output("log_probs", floor=4.0, row_share=1.0),
    Output("ranks", exact=True),
    Output("top_ids", exact=True),
    Output("top_log_probs", floor=4.0, row_share=1.0),
)
TWIN = Twin(
    "token_log_probs",
    OUTPUTS,
    corners,
    space,
    inputs,
    reference="reference.kernels.log_probs:token_log_probs",
    bytes_moved=bytes_moved,
    weights_of_model=ways_of_model,
)

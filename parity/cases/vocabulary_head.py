"""vocabulary_head: logits, the largest one's token and the log-sum-exp, in any combination, for up to 64 rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optimized.device import device_of
from optimized.kernels import vocabulary_head as panel
from parity.cases.linear import FEW_ROWS, MOST_TOKENS, dense_inputs, for_optimized, for_reference, terms
from parity.cases.linear import untried as untried_product
from parity.shape import Shape
from parity.twin import Call, Config, Output, Twin
from reference.formats import Array, format_named
from reference.kernels import vocabulary_head as reference_panel

RESULTS = ("logits", "token_ids", "log_sum_exp")
BASE: dict[str, Any] = {
    "tokens": 4,
    "in_features": 320,
    "vocab": 200,
    "dtype": "bfloat16",
    "gives": list(RESULTS),
    "norm": False,
    "pdl": False,
    "rows": "normal",
    "row_stride": 0,
    "weight_stride": 0,
}


def corners() -> Iterator[Config]:
    for tokens in FEW_ROWS:
        yield BASE | {"tokens": tokens}
        yield BASE | {"tokens": tokens, "norm": True, "pdl": True, "gives": ["token_ids"]}
    for gives in (["logits"], ["token_ids"], ["log_sum_exp"], ["token_ids", "log_sum_exp"]):
        for pdl in (False, True):
            yield BASE | {"tokens": 9, "gives": gives, "pdl": pdl}
    for rows in ("nan", "inf", "zeros", "tiny", "huge", "minus infinity", "ties"):
        yield BASE | {"tokens": 20, "rows": rows}
    yield BASE | {"tokens": 20, "dtype": "float16"}
    yield BASE | {"tokens": 70, "in_features": 64, "gives": ["logits"]}
    for k in (8, 99, 1000):
        yield BASE | {"tokens": 3, "in_features": k}
    for vocab in (1, 2, 17, 2500):
        yield BASE | {"tokens": 3, "in_features": 64, "vocab": vocab}
    yield BASE | {"tokens": 17, "in_features": 64, "vocab": 2500, "rows": "ties"}
    yield BASE | {"norm": True, "eps": 0.25, "weight_bias": 1.0}
    yield BASE | {"tokens": 9, "row_stride": 960, "weight_stride": 323, "out_stride": {"logits": 203}}
    for offset in (1, 8, {"x": 1}, {"weight": 1}, {"logits": 1}):
        yield BASE | {"offset": offset}
    yield BASE | {"norm": True, "offset": {"norm_weight": 1}}
    # More than 2^31 elements, to the last row of the weight.
    yield BASE | {"tokens": 3, "in_features": 64, "vocab": 67, "weight_stride": 1 << 25}
    for tokens in (1, 32):
        yield BASE | {"tokens": tokens, "in_features": 1024, "vocab": 37984, "gives": ["token_ids", "log_sum_exp"]}


space = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 64),
        "in_features": st.integers(1, 60).map(lambda count: 8 * count),
        "vocab": st.integers(1, 300),
        "dtype": st.just("bfloat16"),
        "gives": st.sampled_from([list(RESULTS), ["token_ids"]]),
        "norm": st.booleans(),
        "pdl": st.booleans(),
        "rows": st.sampled_from(["normal", "nan", "ties"]),
        "row_stride": st.just(0),
        "weight_stride": st.just(0),
    }
)


def reference(
    x: Array, weight: Array, *others: Array, given: list[str], gives: list[str], **constants: Any
) -> tuple[Array, ...]:
    """What is not asked for is of no size."""
    named = dict(zip(given, others, strict=True))
    results = reference_panel.vocabulary_head(x, weight, **named, **for_reference(constants))._asdict()
    return tuple(results[name] if name in gives else results[name][:0] for name in RESULTS)


def optimized(
    x: Any,
    weight: Any,
    *others: Any,
    given: list[str],
    gives: list[str],
    out: tuple[Any, ...] = (None, None, None),
    **constants: Any,
) -> tuple[Any, ...]:
    named, asked = dict(zip(given, others, strict=True)), {name: name in gives for name in RESULTS}
    nothing = {
        "logits": ((0, weight.shape[0]), "float32"),
        "token_ids": ((0,), "int32"),
        "log_sum_exp": ((0,), "float32"),
    }
    wanted = panel.VocabularyHead(*(one if asked[name] else None for one, name in zip(out, RESULTS, strict=True)))
    results = panel.vocabulary_head(x, weight, **named, **asked, **for_optimized(constants), out=wanted)
    return tuple(
        device_of(x).empty(*nothing[name])
        if one is None and given_out is None
        else one
        if one is not None
        else given_out
        for name, one, given_out in zip(RESULTS, results, out, strict=True)
    )


def inputs(config: Config, random: np.random.Generator) -> Call:
    """ "ties": whole numbers, whose sums are exact in any order, and rows of the weight that repeat others."""
    kind = config["rows"]
    plain = {**config, "rows": "normal" if kind in ("ties", "minus infinity") else kind}
    call = dense_inputs(plain, random, rows=config["vocab"])
    x, weight = call.arrays["x"], call.arrays["weight"]
    if kind == "ties":
        x[...] = random.integers(-2, 3, x.shape)
        weight[...] = random.integers(-2, 3, (7, weight.shape[1]))[random.integers(0, 7, len(weight))]
    elif kind == "minus infinity":  # alone in some rows, beside numbers in others
        weight[:, 0], weight[::3, 0] = 1, 0
        weight[: len(weight) // 2, 1], weight[len(weight) // 2 :, 1] = 1, 2
        x[::2, 0], x[1::2, 1] = np.inf, -np.inf
    return Call(call.arrays, {**call.constants, "gives": config["gives"]})


def magnitudes(call: Call) -> list[Array | None]:
    """A log-sum-exp errs as the largest of its logits may."""
    with np.errstate(all="ignore"):
        of_terms = terms(call)
        worst = np.max(of_terms, axis=-1, initial=0.0) + np.log(of_terms.shape[1]) + 1
    gives = call.constants["gives"]
    return [of_terms if "logits" in gives else of_terms[:0], None, worst if "log_sum_exp" in gives else worst[:0]]


def weights_of_model(shape: Shape, tokens: int) -> dict[str, Config]:
    if tokens > MOST_TOKENS:
        return {}
    config = BASE | {"tokens": tokens, "in_features": shape.hidden, "vocab": shape.vocab}
    return {"logits": config | {"gives": ["logits"]}, "token": config | {"gives": ["token_ids"]}}


def untried(config: Config, executor: str) -> str | None:
    """More rows are cuBLAS's where that is: nowhere but on a GPU."""
    if executor == "compile" and config["tokens"] > MOST_TOKENS and not config["norm"]:
        return "cuBLAS comes as machine code: there is nothing to compile"
    return untried_product(config, executor)


def bytes_moved(config: Config) -> int:
    tokens, k, vocab = config["tokens"], config["in_features"], config["vocab"]
    elements = (tokens + vocab) * k + (k if config["norm"] else 0)
    words = tokens * sum({"logits": vocab, "token_ids": 1, "log_sum_exp": 1}[name] for name in config["gives"])
    return elements * format_named(config["dtype"]).dtype.itemsize + 4 * words


TWIN = Twin(
    "vocabulary_head",
    (
        # 2: see `linear`. 4: a norm's factor multiplies the sum, and its root errs by units of float32.
        Output("logits", of_magnitude=2.0, row_share=1.0, floor=4.0),
        Output("token_ids", exact=True),
        # 8: each exp and the logarithm err by a few units, in one direction at worst.
        Output("log_sum_exp", of_magnitude=2.0, floor=8.0),
    ),
    corners,
    space,
    inputs,
    reference="parity.cases.vocabulary_head:reference",
    optimized="parity.cases.vocabulary_head:optimized",
    bytes_moved=bytes_moved,
    weights_of_model=weights_of_model,
    untried=untried,
    magnitudes=magnitudes,
)

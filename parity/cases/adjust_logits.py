"""adjust_logits: histories with repeats, of prompt and output, and biases: bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.cases.sample_tokens import KINDS, logits_of
from parity.harness import seed_of
from parity.inputs import far_apart
from parity.shape import MOST_DECODES, Shape
from parity.twin import Call, Config, Output, Twin

BASE: dict[str, Any] = {
    "rows": 5,
    "vocab": 1000,
    "history": 300,  # tokens of a row, at most
    "among": 1000,  # different ones, at most
    "biases": 3,
    "logits": "normal",
    "row_stride": 0,
}


def corners() -> Iterator[Config]:
    for logits in KINDS:
        yield BASE | {"logits": logits}
    for rows in (0, 1, 40):
        yield BASE | {"rows": rows}
    for vocab in (1, 3, 16384, 16387, 151936):
        yield BASE | {"vocab": vocab}
    for history in (0, 1, 3000):
        for among in (1, 7):
            yield BASE | {"history": history, "among": among}
    for biases in (0, 1, 300):
        yield BASE | {"biases": biases, "history": 5}
        yield BASE | {"biases": biases, "history": 0}
    yield BASE | {"row_stride": 1001}
    yield BASE | {"vocab": 50, "biases": 20}
    # Tensors that begin between the places to which wide accesses are aligned: all, and each alone.
    for offset in (1, 8, *({name: 1} for name in ("logits", "bias_ids", "bias", "turned"))):
        yield BASE | {"offset": offset}
    yield BASE | {"out_stride": 3}
    # More than 2^31 elements.
    yield BASE | {"vocab": 151936, "rows": 3, "row_stride": 2**30 + 1}


space = st.fixed_dictionaries(
    {
        "rows": st.integers(0, 8),
        "vocab": st.integers(1, 3000),
        "history": st.integers(0, 200),
        "among": st.integers(1, 3000),
        "biases": st.integers(0, 8),
        "logits": st.sampled_from(KINDS),
        "row_stride": st.just(0),
    }
)


def inputs(config: Config, random: np.random.Generator) -> Call:
    rows, vocab = config["rows"], config["vocab"]
    logits = logits_of(config["logits"], random, rows, vocab)
    is_large = np.less(random.random(rows), 0.5)  # where penalties overflow
    logits[is_large] = np.copysign(np.float32(3e38), logits[is_large])
    repetition = np.where(is_large, random.choice([0.7, 1e30], rows), random.choice([1.0, 1.3, 0.7], rows))
    if config["row_stride"]:
        logits = far_apart(logits, config["row_stride"])
    lens = random.integers(0, config["history"] + 1, rows)
    lens[random.random(rows) < 0.2] = 0
    history = random.integers(0, min(vocab, config["among"]), lens.sum()).astype(np.int32)
    history[random.random(len(history)) < 0.02] = -1
    num_biases = min(vocab, config["biases"])
    bias_ids = (random.permutation(vocab)[:num_biases] + random.integers(0, vocab, (rows, 1))) % vocab
    bias_ids = np.where(random.random(bias_ids.shape) < 0.2, -1, bias_ids).astype(np.int32)
    bias = random.uniform(-100, 100, bias_ids.shape).astype(np.float32)
    arrays = {
        "logits": logits,
        "history": history,
        "history_start": np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
        "prompt_lens": random.integers(0, lens + 1).astype(np.int32),
        "repetition": repetition.astype(np.float32),
        "presence": random.choice([0.0, 1.5, -0.3], rows).astype(np.float32),
        "frequency": random.choice([0.0, 0.1, -1.7], rows).astype(np.float32),
        "bias_ids": bias_ids,
        "bias": np.where(is_large[:, None], bias * np.float32(1e36), bias),
    }
    return Call(arrays)


def ways_of_model(shape: Shape, tokens: int) -> dict[str, Config]:
    """A step of decode, of texts of a hundred tokens on average, and of two thousand."""
    if tokens > MOST_DECODES:
        return {}
    base = BASE | {"rows": tokens, "vocab": shape.vocab, "among": shape.vocab, "biases": 0}
    return {"200": base | {"history": 200}, "4000": base | {"history": 4000}}


def bytes_moved(config: Config) -> int:
    """Logits that are named are read and written, the rest are left alone."""
    call = inputs(config, np.random.default_rng(seed_of(config)))
    beside = sum(array.nbytes for name, array in call.arrays.items() if name != "logits")
    return beside + 8 * config["rows"] + 8 * num_named(call)


def num_named(call: Call) -> int:
    """Pairs of a row and an id that its history or its biases name."""
    arrays = call.arrays
    row = np.repeat(np.arange(len(arrays["bias_ids"])), np.diff(arrays["history_start"]))
    of_history = set(zip(row.tolist(), arrays["history"].tolist(), strict=True))
    of_biases = {(row, token) for row, tokens in enumerate(arrays["bias_ids"].tolist()) for token in tokens}
    return sum(token >= 0 for _, token in of_history | of_biases)


# A NaN that is computed is any.
OUTPUTS = (Output("logits", exact=True, any_nan=True, in_place="logits"), Output("turned", exact=True))
TWIN = Twin("adjust_logits", OUTPUTS, corners, space, inputs, bytes_moved=bytes_moved, weights_of_model=ways_of_model)

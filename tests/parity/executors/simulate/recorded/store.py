"""What a chip gave for the cases, in one .npz.

Of each output whose bits the reference does not fix, the bits; where it overwrites an input, those that it changed. Of
exact ones a hash: when they were recorded they were the reference's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.twin import Call, Config, Output
from reference.formats import Array


@dataclass(frozen=True)
class Answer:
    """One output of a case."""

    name: str
    hash: str  # of its bits
    changed: Array | None  # bits, exclusive-or of what was there (see `bits_before`). None: as the reference has them


@dataclass(frozen=True)
class Case:
    twin: str
    config: Config
    inputs: str  # their hash
    answers: Sequence[Answer]


@dataclass(frozen=True)
class Recording:
    facts: Mapping[str, str]  # "chip", "driver", "date"
    cases: Sequence[Case]


def bits_of(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def hash_of(array: Array) -> str:
    described = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(described + bits_of(array).tobytes()).hexdigest()[:32]


def hash_of_inputs(call: Call) -> str:
    """Of all arrays, and of the constants."""
    digest = hashlib.sha256(json.dumps(dict(call.constants), sort_keys=True).encode())
    for name, array in call.arrays.items():
        digest.update(f"{name} {hash_of(array)} ".encode())
    return digest.hexdigest()[:32]


def bits_before(output: Output, call: Call, like: Array) -> Array:
    """Of the input that an output overwrites, or else zeros."""
    return np.zeros_like(bits_of(like)) if output.in_place is None else bits_of(call.arrays[output.in_place])


def answer(output: Output, call: Call, result: Array) -> Answer:
    keeps_bits = not output.exact or output.any_nan
    changed = bits_of(result) ^ bits_before(output, call, result) if keeps_bits else None
    return Answer(output.name, hash_of(result), changed)


def save(path: Path, recording: Recording) -> None:
    streams: dict[str, list[Array]] = {}
    index: dict[str, Any] = {"facts": dict(recording.facts), "cases": []}
    for case in recording.cases:
        answers = []
        for one in case.answers:
            described: dict[str, Any] = {"name": one.name, "hash": one.hash}
            if one.changed is not None:
                streams.setdefault(str(one.changed.dtype), []).append(one.changed.reshape(-1))
                described |= {"dtype": str(one.changed.dtype), "shape": one.changed.shape}
            answers.append(described)
        index["cases"].append({"twin": case.twin, "config": case.config, "inputs": case.inputs, "answers": answers})
    # Bytes of the same weight side by side: signs and exponents pack, mantissas do not.
    arrays = {name: _by_weight(np.concatenate(parts)) for name, parts in streams.items()}
    np.savez_compressed(path, index=np.frombuffer(json.dumps(index).encode(), np.uint8), **arrays)


def load(path: Path) -> Recording:
    with np.load(path, allow_pickle=False) as file:
        index = json.loads(file["index"].tobytes())
        streams = {name: _by_element(file[name], name) for name in file.files if name != "index"}
    place = dict.fromkeys(streams, 0)
    cases = []
    for case in index["cases"]:
        answers = []
        for one in case["answers"]:
            changed = None
            if "dtype" in one:
                name, size = one["dtype"], int(np.prod(one["shape"]))
                changed = streams[name][place[name] : place[name] + size].reshape(one["shape"])
                place[name] += size
            answers.append(Answer(one["name"], one["hash"], changed))
        cases.append(Case(case["twin"], case["config"], case["inputs"], answers))
    return Recording(index["facts"], cases)


def _by_weight(bits: Array) -> Array:
    return np.ascontiguousarray(bits.view(np.uint8).reshape(-1, bits.itemsize).T)


def _by_element(planes: Array, dtype: str) -> Array:
    return np.ascontiguousarray(planes.T).view(dtype).reshape(-1)

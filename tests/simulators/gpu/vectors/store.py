"""The chip's answers in one .npz.

Answers of probes with the same operands lie side by side, one row an element: they differ in few bits, so they pack
well. Of answers to all 65,536 operands only a checksum of every 512 and a sample are kept.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.simulators.gpu.vectors.probes import PROBES

WHOLE = 65536  # elements from which on an answer is not kept
CHUNK, STRIDE = 512, 97


@dataclass(frozen=True)
class Recording:
    """What a chip answered: of each probe its outputs, then its memories, each as `kept` makes it."""

    facts: Mapping[str, str]  # "device", "driver"
    answers: Mapping[str, Sequence[NDArray]]


def kept(answer: NDArray) -> NDArray:
    """What is kept of an answer: itself, or its checksums and every 97th of its elements."""
    flat = np.ascontiguousarray(answer).reshape(-1)
    if len(flat) < WHOLE:
        return flat
    checksums = [zlib.crc32(flat[start : start + CHUNK].tobytes()) for start in range(0, len(flat), CHUNK)]
    return np.concatenate([np.array(checksums, np.uint32), flat[::STRIDE].astype(np.uint32)])


def save(path: Path, recording: Recording) -> None:
    columns: dict[tuple[object, ...], list[NDArray]] = defaultdict(list)
    places: list[tuple[str, tuple[object, ...], int]] = []
    for name, answers in recording.answers.items():
        for answer in answers:
            key = (PROBES[name].inputs, answer.dtype.str, len(answer))
            places.append((name, key, len(columns[key])))
            columns[key].append(answer)
    groups = {key: f"group_{number}" for number, key in enumerate(columns)}
    index = {"facts": dict(recording.facts), "places": [(name, groups[key], column) for name, key, column in places]}
    arrays = {groups[key]: np.stack(answers, axis=1) for key, answers in columns.items()}
    np.savez_compressed(path, index=np.frombuffer(json.dumps(index).encode(), np.uint8), **arrays)  # type: ignore[arg-type]


def load(path: Path) -> Recording:
    with np.load(path, allow_pickle=False) as file:
        index = json.loads(file["index"].tobytes())
        arrays = {name: file[name] for name in file.files if name != "index"}
    answers: dict[str, list[NDArray]] = defaultdict(list)
    for name, group, column in index["places"]:
        answers[name].append(np.ascontiguousarray(arrays[group][:, column]))
    return Recording(index["facts"], dict(answers))

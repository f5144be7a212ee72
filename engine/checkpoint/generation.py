"""What a checkpoint says about how its text is to be sampled: `generation_config.json`, or else `config.json`.

Source: transformers `GenerationConfig`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.error import CheckpointError
from reference.serving.request import RequestError, SamplingParams


@dataclass(frozen=True)
class GenerationDefaults:
    """End-of-sequence ids, and the sampling parameters that the file names; None where it says nothing.

    `do_sample: false` is written down as temperature 0, which is greedy.
    """

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None


def read_generation_defaults(directory: Path) -> GenerationDefaults:
    """Read `generation_config.json` of a checkpoint; end-of-sequence ids fall back to those of `config.json`.

    Errors: CheckpointError that names the file and the field.
    """
    file = directory / "generation_config.json"
    raw = read_json(file) if file.is_file() else {}
    source = file if raw.get("eos_token_id") is not None else directory / "config.json"
    eos_token_ids = _eos_token_ids(source, raw if source == file else read_json(source) if source.is_file() else {})
    sampling = {
        name: raw[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty") if raw.get(name) is not None
    }
    if sampling.get("top_k") == -1:  # a spelling of "keep all" that is in use
        sampling["top_k"] = 0
    if raw.get("do_sample") is False:
        sampling["temperature"] = 0.0
    for name, value in sampling.items():
        if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else int | float):
            raise CheckpointError(f"{file}: {name} is {value!r}; expected a number")
    try:
        SamplingParams(**sampling)
    except RequestError as error:
        raise CheckpointError(f"{file}: {error}") from None
    return GenerationDefaults(eos_token_ids, **sampling)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object of a file. Errors: CheckpointError that names the file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__}; expected a JSON object")
    return value


def _eos_token_ids(file: Path, raw: Mapping[str, Any]) -> tuple[int, ...]:
    value = raw.get("eos_token_id")
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if any(type(item) is not int or item < 0 for item in ids):
        raise CheckpointError(f"{file}: eos_token_id is {value!r}; expected a token id or a list of them")
    return ids

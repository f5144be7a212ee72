"""generation_config.json: ids that end a sample, and default sampling, as the file says them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.error import CheckpointError
from engine.checkpoint.generation import GenerationDefaults, read_generation_defaults


def read(directory: Path, generation: Any = None, config: Any = None) -> GenerationDefaults:
    for name, value in (("generation_config.json", generation), ("config.json", config)):
        if value is not None:
            (directory / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return read_generation_defaults(directory)


QWEN3 = {"eos_token_id": [151645, 151643], "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (QWEN3, {"eos_token_id": 1}, GenerationDefaults((151645, 151643), 0.6, 0.95, 20)),
        ({"eos_token_id": 7}, None, GenerationDefaults((7,))),
        ({"eos_token_id": 0}, {"eos_token_id": 1}, GenerationDefaults((0,))),
        ({}, {"eos_token_id": 3}, GenerationDefaults((3,))),
        ({"eos_token_id": None}, {"eos_token_id": [3, 4]}, GenerationDefaults((3, 4))),
        (None, {"eos_token_id": 3}, GenerationDefaults((3,))),
        (None, {}, GenerationDefaults()),
        (None, None, GenerationDefaults()),
        ({"eos_token_id": []}, {"eos_token_id": 3}, GenerationDefaults()),
        ({"repetition_penalty": 1.05}, None, GenerationDefaults(repetition_penalty=1.05)),
        ({"do_sample": False, "temperature": 0.6}, None, GenerationDefaults(temperature=0.0)),
        ({"do_sample": False}, None, GenerationDefaults(temperature=0.0)),
        ({"top_k": -1}, None, GenerationDefaults(top_k=0)),
        ({"temperature": None, "top_k": 0}, None, GenerationDefaults(top_k=0)),
    ],
)
def test_says_what_the_file_says(tmp_path: Path, generation: Any, config: Any, expected: GenerationDefaults) -> None:
    assert read(tmp_path, generation, config) == expected


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [1, -1]}, "eos_token_id is [1, -1]"),
        ({"eos_token_id": True}, "eos_token_id is True"),
        ({"temperature": -1}, "temperature is -1; it must lie in [0.0, inf)"),
        ({"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": 2.5}, "top_k is 2.5; expected a number"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ("[1]", "holds a list; expected a JSON object"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_what_cannot_be_is_refused_by_file_and_field(tmp_path: Path, generation: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        read(tmp_path, generation)
    assert str(tmp_path / "generation_config.json") in str(raised.value) and message in str(raised.value)


def test_a_wrong_id_in_config_json_names_that_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"/config\.json: eos_token_id is 'x'"):
        read(tmp_path, {}, {"eos_token_id": "x"})

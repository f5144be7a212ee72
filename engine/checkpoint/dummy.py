"""Seeded random weights for any model shape: `--load-format dummy`, and no checkpoint on disk.

    matrix [N, K]         std 1 / sqrt(K), so that a product of O(1) activations is O(1)
    norm weight           1 + u / 8
    bias                  std 1/8
    e4m3 matrix           448 u, and its scale_inv = sqrt(3) / (448 sqrt(K)) (1 + u / 8) for each block of 128 x 128

u is uniform on [-1, 1) in steps of 2^-15, from the Philox4x64-10 counter stream whose 128-bit key is
(seed, BLAKE2b-64 of the tensor's name). So a tensor depends on seed, name and shape alone: on no other tensor, on no
order of loading. One rounding, to the tensor's format, after float32 arithmetic.
Matrices of _LARGE elements and more are stretches of one stream instead (that of no name), which begin where the hash
of the name says, and go on at its start where it ends: a model of 60 GB is then copied from memory, not drawn.
Source of the generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from engine.checkpoint.checkpoint import Checkpoint, read_config
from engine.checkpoint.error import CheckpointError
from engine.checkpoint.generation import read_generation_defaults
from engine.checkpoint.resolve import BUILTIN_DIRECTORY, shape_file, shape_names
from reference.formats import FLOAT8_E4M3, Array, Format
from reference.model.config import ModelConfig
from reference.model.tensors import TensorSpec, checkpoint_tensors

_CHUNK = 1 << 22  # values drawn at once: what is held besides the tensor itself stays under 32 MiB
_LARGE = 1 << 18
_STREAM = (1 << 26) + 1  # values of the stream that large matrices share: odd, so that rows repeat none
_KINDS = 3  # of values of that stream, by range and format, that are kept: a model's matrices have about as many
_JITTER = 1 / 8


def dummy_checkpoint(name: str | Path, seed: int = 0, *, dtype: Format | None = None) -> Checkpoint:
    """A checkpoint of random weights. name: a shape of `reference/model/shapes`, or a directory with a `config.json`.

    Text goes through the directory's tokenizer; a shape, or a directory without one, has the built-in dense model's.
    Errors: CheckpointError for a name that is neither, and for a seed that is not 64 bits; ConfigError.
    """
    if not 0 <= seed < 2**64:
        raise CheckpointError(f"seed is {seed}; it must lie in [0, 2^64)")
    directory, shape = Path(name), shape_file(str(name))
    file = directory / "config.json"
    if not file.is_file():
        if shape is None:
            raise CheckpointError(
                f"there is no shape {str(name)!r} and no directory of that name with a config.json; "
                f"shapes are {', '.join(shape_names())}"
            )
        file = shape
    config = read_config(file, dtype)
    text = directory if (directory / "tokenizer.json").is_file() else BUILTIN_DIRECTORY / "dense"
    return Checkpoint(text, config, DummyTensors(config, seed), read_generation_defaults(text))


class DummyTensors(Mapping[str, Array]):
    """The random tensors of a model by name, in the formats of `checkpoint_tensors`, not to be written to. Each is made
    anew whenever it is taken, and of large ones' values those last needed are kept."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._specs, self._seed = checkpoint_tensors(config), seed
        self._stream = lru_cache(_KINDS)(partial(self._values, "", _STREAM))

    def __getitem__(self, name: str) -> Array:
        spec = self._specs[name]
        if name.endswith("norm.weight") or ".pre_fc_norm_" in name:
            return self._affine(name, spec, 1.0, _JITTER)
        if name.endswith(".bias"):
            return self._affine(name, spec, 0.0, _JITTER * math.sqrt(3))
        if spec.format == FLOAT8_E4M3:
            return self._affine(name, spec, 0.0, FLOAT8_E4M3.max)
        if name.endswith(".weight_scale_inv"):
            in_features = self._specs[name.removesuffix("_scale_inv")].shape[-1]
            middle = math.sqrt(3 / in_features) / FLOAT8_E4M3.max
            return self._affine(name, spec, middle, middle * _JITTER)
        return self._affine(name, spec, 0.0, math.sqrt(3 / spec.shape[-1]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def _affine(self, name: str, spec: TensorSpec, middle: float, half_width: float) -> Array:
        """middle + half_width * u, of the tensor's shape and format."""
        size = math.prod(spec.shape)
        if size < _LARGE:
            values = self._values(name, size, spec.format, middle, half_width)
        else:
            stream = self._stream(spec.format, middle, half_width)
            first = _hash(name) % _STREAM
            values = stream[first : first + size]
            if len(values) < size:
                values = _going_on(stream, first, size)
        values.flags.writeable = False
        return values.reshape(spec.shape)

    def _values(self, name: str, size: int, format_: Format, middle: float, half_width: float) -> Array:
        """The first so many of a name's."""
        stream = np.random.Philox(key=self._seed << 64 | _hash(name))
        values = np.empty(size, format_.dtype)
        for start in range(0, size, _CHUNK):
            chunk = values[start : start + _CHUNK]
            words = stream.random_raw(-(-chunk.size // 4)).astype("<u8", copy=False)
            steps = words.view("<i2")[: chunk.size].astype(np.float32)
            chunk[:] = steps * np.float32(half_width * 2**-15) + np.float32(middle)
        return values


def _going_on(stream: Array, first: int, size: int) -> Array:
    """So many values from there on, which go on at the start where the stream ends. Each is copied once."""
    values = np.empty(size, stream.dtype)
    done = 0
    while done < size:
        part = stream[first : first + size - done]
        values[done : done + len(part)] = part
        done, first = done + len(part), 0
    return values


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")

"""A `.safetensors` file as NumPy arrays over the mapped file: nothing is read before it is used, nothing is copied.

    8 bytes                 n, the header's length, unsigned and little-endian
    n bytes                 JSON: {name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
    the rest                the tensors' bytes, row-major and little-endian, at those offsets counted from here

The tensors cover the rest exactly: no overlap, no hole, no byte left over. `__metadata__` is the one name in the
header that is not a tensor.
The header is parsed here because the safetensors library gives NumPy no float8; writing is left to that library.
Source: the format's description in the safetensors repository, huggingface/safetensors on GitHub.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import ml_dtypes
import numpy as np

from engine.checkpoint.error import CheckpointError
from reference.formats import BY_SAFETENSORS, Array, DType

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit; more is a corrupt length

# Formats of arithmetic are declared in reference.formats; a file may hold these besides.
_OTHER_DTYPES: dict[str, DType] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
DTYPES = {code: format_.dtype for code, format_ in BY_SAFETENSORS.items()} | _OTHER_DTYPES


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: bytes [begin, end) counted from the start of the file."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile(Mapping[str, Array]):
    """The tensors of one file by name, as read-only arrays; `entries` says what each is, without touching its bytes.

    A tensor whose offset is no multiple of its dtype's alignment is copied when it is taken: an unaligned array is
    legal in NumPy, but not everywhere it goes from there.
    Errors: CheckpointError that names the file and, where there is one, the tensor, at opening. A file that is too
    short names the first tensor that reaches beyond its end.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                header, data_begin = _read_header(self.path, file, size)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}") from None
        self.entries = {
            name: _entry(self.path, name, value, data_begin) for name, value in header.items() if name != "__metadata__"
        }
        _check_layout(self.path, self.entries, data_begin, size)
        self._bytes = np.asarray(np.memmap(self.path, dtype=np.uint8, mode="r"))

    def __getitem__(self, name: str) -> Array:
        entry = self.entries[name]
        raw = self._bytes[entry.begin : entry.end]
        if entry.begin % entry.dtype.alignment:
            raw = raw.copy()
            raw.flags.writeable = False
        return raw.view(entry.dtype).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The parsed header and the offset where the tensors' bytes begin."""
    prefix = file.read(_LENGTH_BYTES)
    if len(prefix) < _LENGTH_BYTES:
        raise CheckpointError(f"{path} has {size} bytes: too short for a safetensors file; it was cut off or is empty")
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} is not a safetensors file: it claims a header of {length} bytes")
    data_begin = _LENGTH_BYTES + length
    if data_begin > size:
        raise CheckpointError(f"{path} is cut off inside its header: {data_begin} bytes expected, {size} there")
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not valid: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object")
    return header, data_begin


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return result


def _entry(path: Path, name: str, value: Any, data_begin: int) -> TensorEntry:
    """One header entry, checked on its own: known dtype, a shape, offsets that span just that many bytes."""
    where = f"{path}: tensor {name!r}"
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: its header entry is not a JSON object")
    code, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(code, str) or code not in DTYPES:
        raise CheckpointError(f"{where}: unknown dtype {code!r}; known are {', '.join(DTYPES)}")
    if not _are_sizes(shape):
        raise CheckpointError(f"{where}: shape {shape!r} is not a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: data_offsets {offsets!r} is not a pair of offsets")
    begin, end = offsets
    expected = math.prod(shape) * DTYPES[code].itemsize
    if end - begin != expected:
        raise CheckpointError(
            f"{where}: data_offsets [{begin}, {end}] span {end - begin} bytes; {code} of shape {shape} takes {expected}"
        )
    return TensorEntry(DTYPES[code], tuple(shape), data_begin + begin, data_begin + end)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, entries: Mapping[str, TensorEntry], data_begin: int, size: int) -> None:
    """The tensors, taken together, cover the bytes from data_begin to the end of the file exactly once."""
    ordered = sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))
    position, previous = data_begin, None
    for name, entry in ordered:
        if entry.begin > position:
            raise CheckpointError(f"{path}: {entry.begin - position} bytes before tensor {name!r} belong to none")
        if entry.begin < position:
            raise CheckpointError(f"{path}: tensor {name!r} overlaps tensor {previous!r}")
        position, previous = entry.end, name
    for name, entry in ordered:
        if entry.end > size:
            raise CheckpointError(
                f"{path} is cut off: it has {size} bytes, {position} are expected, "
                f"and tensor {name!r} is the first that lies beyond the end"
            )
    if position < size:
        raise CheckpointError(f"{path}: {size - position} bytes after the last tensor belong to none")

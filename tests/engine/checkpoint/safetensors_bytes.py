"""Safetensors files written byte by byte, so that they can be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.checkpoint.safetensors_file import DTYPES
from reference.formats import Array

CODES = {dtype: code for code, dtype in DTYPES.items()}


def file_bytes(header: bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """length, header, data; without any padding."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def header_of(tensors: Mapping[str, Array]) -> dict[str, Any]:
    header, position = {}, 0
    for name, tensor in tensors.items():
        offsets = [position, position + tensor.nbytes]
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    return header


def write(path: Path, tensors: Mapping[str, Array]) -> Path:
    data = b"".join(np.ascontiguousarray(tensor).tobytes() for tensor in tensors.values())
    path.write_bytes(file_bytes(header_of(tensors), data))
    return path

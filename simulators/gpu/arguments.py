"""A kernel's arguments, each from a short text, as a command line gives them.

x.npy                a pointer to the file's array; a file that is named again is the same memory again
bf16:x.npy           the same, its bits seen as that type (NumPy alone reads files of bfloat16 and fp8 as plain bits)
zeros:f32:4x1024     a pointer to an array of that type and shape
empty:f32:1024       the same, of memory that holds nothing
u32:7  f32:0.5       a number
raw:00ff12           bytes
struct:x.npy,u32:4   fields, laid out as C lays out a struct

Types are those of PTX: u8 to u64, s8 to s64, b8 to b64, f16, bf16, f32, f64, e4m3, e5m2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from simulators.gpu.ptx.module import Kernel, Parameter

ALIGNMENT = 256  # bytes: of what a GPU's driver allocates
UNWRITTEN = 0xFF  # every byte of memory that holds nothing: NaN, or -1
TYPES: dict[str, np.dtype[Any]] = {
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_SHAPE = re.compile(r"[0-9]+(x[0-9]+)*")


class ArgumentError(ValueError):
    """An argument that cannot be understood, or is not what the kernel takes. The message says which, and why."""


@dataclass(frozen=True)
class ArrayArgument:
    """Memory that a kernel is given a pointer to."""

    label: str  # the number of the argument; "2.1": of field 1 of argument 2
    text: str  # as it was asked for
    array: NDArray[Any]  # which the kernel may change
    is_initialized: bool

    @property
    def name(self) -> str:
        return f"{self.label}: {self.text}"


@dataclass(frozen=True)
class Arguments:
    """Of one launch."""

    parameters: bytes  # with the arrays' addresses, so they must outlive it
    arrays: tuple[ArrayArgument, ...]


def read_arguments(kernel: Kernel, texts: Sequence[str]) -> Arguments:
    """One text for each of the kernel's parameters, in their order. Errors: ArgumentError."""
    if len(texts) != len(kernel.parameters):
        wanted = ", ".join(f"{one.name} of {one.size} bytes" for one in kernel.parameters) or "nothing"
        raise ArgumentError(f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(texts)}: {wanted}")
    reader = _Reader()
    block = bytearray(kernel.parameter_bytes)
    for number, (text, parameter) in enumerate(zip(texts, kernel.parameters, strict=True)):
        try:
            data = _fitted(reader.argument(text, str(number)), parameter)
        except ArgumentError as error:
            raise ArgumentError(f"argument {number}, {text!r}: {error}") from None
        block[parameter.offset : parameter.offset + parameter.size] = data
    return Arguments(bytes(block), tuple(reader.arrays))


@dataclass(frozen=True)
class _Piece:
    data: bytes
    align: int


def _fitted(piece: _Piece, parameter: Parameter) -> bytes:
    """As many bytes as the parameter has; a struct may end with padding."""
    padded = -(-len(piece.data) // piece.align) * piece.align
    if not len(piece.data) <= parameter.size <= padded:
        raise ArgumentError(f"it has {len(piece.data)} bytes, and the parameter {parameter.name} has {parameter.size}")
    return piece.data.ljust(parameter.size, b"\0")


class _Reader:
    """Reads arguments, and keeps their arrays."""

    def __init__(self) -> None:
        self.arrays: list[ArrayArgument] = []
        self._files: dict[Path, ArrayArgument] = {}

    def argument(self, text: str, label: str) -> _Piece:
        kind, _, rest = text.partition(":")
        if kind != "struct":
            return self._piece(text, label)
        data, align = b"", 1
        for number, field in enumerate(rest.split(",")):
            piece = self._piece(field, f"{label}.{number}")
            data = data.ljust(-(-len(data) // piece.align) * piece.align, b"\0") + piece.data
            align = max(align, piece.align)
        return _Piece(data, align)

    def _piece(self, text: str, label: str) -> _Piece:
        kind, colon, rest = text.partition(":")
        if colon and kind in TYPES and not rest.endswith(".npy"):
            data = _number(kind, rest)
            return _Piece(data, len(data))
        if colon and kind == "raw":
            return _Piece(_raw(rest), 1)
        if colon and kind in ("zeros", "empty"):
            return self._pointer(self._new(text, label))
        if colon and kind in TYPES:
            return self._pointer(self._file(text, label, Path(rest), TYPES[kind]))
        if text.endswith(".npy"):
            return self._pointer(self._file(text, label, Path(text), None))
        raise ArgumentError(
            f"{text!r} is no argument; it may be FILE.npy, TYPE:NUMBER, TYPE:FILE.npy, zeros:TYPE:SHAPE, "
            f"empty:TYPE:SHAPE, raw:HEX or struct:FIELD,... with a TYPE of {', '.join(TYPES)}"
        )

    def _pointer(self, argument: ArrayArgument) -> _Piece:
        """What has no elements has no place either."""
        address = argument.array.ctypes.data if argument.array.size else 0
        return _Piece(address.to_bytes(8, "little"), 8)

    def _file(self, text: str, label: str, path: Path, dtype: np.dtype[Any] | None) -> ArrayArgument:
        key = path.resolve()
        if key not in self._files:
            read = _read(path)
            if dtype is not None and dtype.itemsize != read.dtype.itemsize:
                raise ArgumentError(f"its elements have {read.dtype.itemsize} bytes; those of {text} have not")
            array = _allocated(read.shape, read.dtype, "C" if read.flags.c_contiguous else "F")
            array[...] = read
            self._files[key] = self._kept(label, text, array if dtype is None else array.view(dtype), True)
        return self._files[key]

    def _new(self, text: str, label: str) -> ArrayArgument:
        kind, _, rest = text.partition(":")
        type_name, _, shape = rest.partition(":")
        if type_name not in TYPES or not _SHAPE.fullmatch(shape):
            raise ArgumentError(f"{text!r} is not {kind}:TYPE:SHAPE, as in {kind}:f32:4x1024")
        try:
            array = _allocated(tuple(map(int, shape.split("x"))), TYPES[type_name], "C")
        except (MemoryError, ValueError, OverflowError):
            raise ArgumentError("there is not enough memory for it") from None
        if kind == "empty":
            array.reshape(-1).view(np.uint8)[:] = UNWRITTEN
        return self._kept(label, text, array, kind == "zeros")

    def _kept(self, label: str, text: str, array: NDArray[Any], is_initialized: bool) -> ArrayArgument:
        self.arrays.append(ArrayArgument(label, text, array, is_initialized))
        return self.arrays[-1]


def _allocated(shape: tuple[int, ...], dtype: np.dtype[Any], order: Any) -> NDArray[Any]:
    """Zeros, as aligned as on a GPU."""
    size = prod(shape) * dtype.itemsize
    raw = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape, order=order)


def _read(path: Path) -> NDArray[Any]:
    try:
        read = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, MemoryError) as error:
        raise ArgumentError(f"{path} is no .npy file: {error}") from None
    if not isinstance(read, np.ndarray):
        raise ArgumentError(f"{path} holds several arrays; save each as a .npy file")
    if read.dtype.kind not in "biufcV" or read.dtype.fields or not read.dtype.isnative:
        raise ArgumentError(f"{path} holds {read.dtype}, which is nothing that a GPU knows")
    return read


def _number(type_name: str, text: str) -> bytes:
    dtype = TYPES[type_name]
    try:
        if type_name[0] in "usb" and type_name != "bf16":
            return np.array(int(text, 0), dtype).tobytes()
        number = float(text)
        with np.errstate(over="ignore"):
            value = np.array(number).astype(dtype)
        if isfinite(number) and not isfinite(float(value)):
            raise OverflowError
        return value.tobytes()
    except ValueError:
        raise ArgumentError(f"{text!r} is no number of type {type_name}") from None
    except OverflowError:
        raise ArgumentError(f"{text} is beyond the range of {type_name}") from None


def _raw(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ArgumentError(f"{text!r} is not a row of bytes in hexadecimal digits") from None

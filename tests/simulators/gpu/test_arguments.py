"""Arguments from words: bytes where the kernel has its parameters, and messages for what cannot be."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from simulators.gpu.arguments import ALIGNMENT, ArgumentError, Arguments, read_arguments
from simulators.gpu.ptx.module import Kernel, Parameter


def read(*pairs: tuple[str, int]) -> Arguments:
    """Of a kernel whose parameters have those sizes, each aligned to 8 bytes."""
    parameters = tuple(
        Parameter(f"p{i}", sum(-(-size // 8) * 8 for _, size in pairs[:i]), size, 8)
        for i, (_, size) in enumerate(pairs)
    )
    return read_arguments(Kernel("k", parameters, ()), [text for text, _ in pairs])


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("u8:255", b"\xff"),
        ("s8:-128", b"\x80"),
        ("u16:0x1234", b"\x34\x12"),
        ("s32:-3", struct.pack("<i", -3)),
        ("u64:18446744073709551615", b"\xff" * 8),
        ("b32:0x7fc00000", struct.pack("<I", 0x7FC00000)),
        ("f16:0.5", struct.pack("<e", 0.5)),
        ("bf16:-1", b"\x80\xbf"),
        ("f32:nan", np.float32(np.nan).tobytes()),
        ("f32:-inf", struct.pack("<f", -np.inf)),
        ("f64:1e300", struct.pack("<d", 1e300)),
        ("e4m3:448", b"\x7e"),
        ("raw:00 ff12", b"\x00\xff\x12"),
        ("struct:u8:1,u32:2,u16:3", struct.pack("<BxxxIHxx", 1, 2, 3)),
        ("struct:u8:1,raw:0203,u64:4", struct.pack("<B2sxxxxxQ", 1, b"\2\3", 4)),
    ],
)
def test_bytes(text: str, data: bytes) -> None:
    assert read((text, len(data))).parameters == data


def test_a_struct_may_end_without_padding() -> None:
    assert read(("struct:u64:1,u32:2", 12)).parameters == struct.pack("<QI", 1, 2)


def test_places() -> None:
    given = read(("u8:7", 1), ("zeros:f32:2x3", 8), ("struct:empty:bf16:5,s32:-1", 16))
    first, second = given.arrays
    assert (first.label, second.label) == ("1", "2.0")
    assert (first.is_initialized, second.is_initialized) == (True, False)
    expected = (7, first.array.ctypes.data, second.array.ctypes.data, -1)
    assert struct.unpack("<BxxxxxxxQQixxxx", given.parameters) == expected
    assert first.array.shape == (2, 3) and not first.array.any()
    assert second.array.dtype == ml_dtypes.bfloat16 and np.isnan(second.array.astype(np.float32)).all()
    assert all(one.array.ctypes.data % ALIGNMENT == 0 for one in given.arrays)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(2.5, np.float32),
        np.array([True, False]),
        np.arange(3, dtype=np.complex64),
    ],
)
def test_files(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    np.save(tmp_path / "x.npy", array)
    (given,) = read((f"{tmp_path}/x.npy", 8)).arrays
    assert given.array.dtype == array.dtype and given.array.strides == array.strides
    assert np.array_equal(given.array, array)


def test_what_is_empty_is_nowhere(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 4)))
    assert read((f"{tmp_path}/x.npy", 8), ("zeros:u8:0", 8)).parameters == bytes(16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no argument"),
        ("x", "is no argument"),
        ("u32", "is no argument"),
        ("u128:1", "is no argument"),
        ("struct:", "'' is no argument"),
        ("struct:u32:1,", "'' is no argument"),
        ("struct:struct:u64:1", "is no argument"),
        ("u64:", "is no number of type u64"),
        ("u64:1.5", "is no number of type u64"),
        ("u64:-1", "beyond the range of u64"),
        ("s64:9223372036854775808", "beyond the range of s64"),
        ("f64:half", "is no number of type f64"),
        ("struct:f32:1e39,u32:0", "beyond the range of f32"),
        ("struct:e4m3:500,u64:0", "beyond the range of e4m3"),
        ("raw:0", "hexadecimal"),
        ("raw:zz", "hexadecimal"),
        ("raw:00", "it has 1 bytes, and the parameter p0 has 8"),
        ("zeros:f32", "zeros:f32:4x1024"),
        ("zeros:f32:-1", "zeros:f32:4x1024"),
        ("empty:int:4", "empty:f32:4x1024"),
        ("zeros:f64:99999999999999999999", "not enough memory"),
        ("absent.npy", "cannot read absent.npy"),
    ],
)
def test_messages(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=r"^argument 0, ") as raised:
        read((text, 8))
    assert message in str(raised.value)


def test_files_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "nothing.npy").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([None]))
    np.save(tmp_path / "strings.npy", np.array(["a"]))
    np.save(tmp_path / "fields.npy", np.zeros(2, [("a", "f4")]))
    np.save(tmp_path / "swapped.npy", np.zeros(2, ">f4"))
    np.savez(tmp_path / "several.npz", a=np.zeros(2))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    (tmp_path / "folder.npy").mkdir()
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ArgumentError):
            read((str(path), 8))


def test_a_type_of_another_size_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    with pytest.raises(ArgumentError, match="elements have 4 bytes"):
        read((f"bf16:{tmp_path}/x.npy", 8))

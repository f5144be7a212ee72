"""A safetensors file opens exactly if it is whole and consistent, costs no reading, and gives what was written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.error import CheckpointError
from engine.checkpoint.safetensors_file import DTYPES, SafetensorsFile
from reference.formats import Array
from tests.engine.checkpoint.safetensors_bytes import CODES, file_bytes, header_of, write

SMALL = {
    "first": np.arange(6, dtype=np.float32).reshape(2, 3),
    "second": np.arange(5).astype(ml_dtypes.bfloat16),
    "third": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
}


def same(actual: Array, expected: Array) -> bool:
    return actual.dtype == expected.dtype and actual.shape == expected.shape and actual.tobytes() == expected.tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Array]:
    names = draw(st.lists(st.text(max_size=8).filter(lambda n: n != "__metadata__"), unique=True, max_size=5))
    result = {}
    for name in names:
        dtype = draw(st.sampled_from([d for d in DTYPES.values() if d != np.bool_]))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        size = int(np.prod(shape, dtype=int)) * dtype.itemsize
        result[name] = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return result


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("safetensors") / "x.safetensors"


@settings(deadline=None)
@given(written=tensors())
def test_gives_what_was_written(scratch: Path, written: dict[str, Array]) -> None:
    # The header is not padded here, so most tensors lie at odd offsets.
    file = SafetensorsFile(write(scratch, written))
    assert set(file) == set(written) and len(file) == len(written)
    for name, tensor in written.items():
        assert same(file[name], tensor)
        assert file[name].flags.aligned and not file[name].flags.writeable


@pytest.mark.parametrize("code", [code for code in DTYPES if code not in ("F8_E8M0",)])
def test_reads_what_the_library_writes(tmp_path: Path, code: str) -> None:
    written = {"x": np.arange(12).reshape(3, 4).astype(DTYPES[code]), "scalar": np.ones((), DTYPES[code])}
    safetensors.numpy.save_file(written, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file) == set(written)
    assert all(same(file[name], tensor) for name, tensor in written.items())


@pytest.mark.parametrize("padding", range(8))
def test_a_tensor_is_a_view_of_the_file_where_it_is_aligned(tmp_path: Path, padding: int) -> None:
    expected = np.arange(6, dtype=np.float32)
    header = json.dumps(header_of({"x": expected})).encode()
    header += b" " * (-len(header) % 8 + padding)
    (tmp_path / "x").write_bytes(file_bytes(header, expected.tobytes()))
    tensor = SafetensorsFile(tmp_path / "x")["x"]
    base: Any = tensor
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    mapped = not isinstance(base, np.ndarray)
    assert same(tensor, expected) and mapped == (padding % 4 == 0)


def test_a_file_cut_anywhere_names_itself_and_the_first_tensor_beyond_the_end(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.safetensors", SMALL).read_bytes()
    data_begin = 8 + int.from_bytes(whole[:8], "little")
    ends = {name: data_begin + entry["data_offsets"][1] for name, entry in header_of(SMALL).items()}
    cut = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as raised:
            SafetensorsFile(cut)
        message = str(raised.value)
        assert str(cut) in message
        beyond = [name for name, end in ends.items() if end > length]
        if length >= data_begin:
            assert repr(beyond[0]) in message and all(repr(name) not in message for name in ends if name != beyond[0])
        else:
            assert all(repr(name) not in message for name in ends)


def changed(name: str, **fields: Any) -> bytes:
    header = header_of(SMALL)
    header[name] |= fields
    return file_bytes(header, b"".join(tensor.tobytes() for tensor in SMALL.values()))


WRONG = {
    "unknown dtype": (changed("second", dtype="F4"), "'second': unknown dtype 'F4'; known are F64"),
    "dtype no name": (changed("second", dtype=["BF16"]), "'second': unknown dtype"),
    "shape too large": (
        changed("second", shape=[6]),
        "'second': data_offsets [24, 34] span 10 bytes; BF16 of shape [6]",
    ),
    "negative size": (changed("second", shape=[-5]), "'second': shape [-5] is not a list of sizes"),
    "size no integer": (changed("second", shape=[True, 5]), "'second': shape [True, 5]"),
    "shape missing": (changed("second", shape=None), "'second': shape None"),
    "one offset": (changed("second", data_offsets=[24]), "'second': data_offsets [24] is not a pair"),
    "falling offsets": (changed("second", data_offsets=[34, 24]), "'second': data_offsets [34, 24] span -10"),
    "overlap": (changed("third", data_offsets=[33, 37]), "tensor 'third' overlaps tensor 'second'"),
    "hole": (changed("third", data_offsets=[35, 39]), "1 bytes before tensor 'third' belong to none"),
    "the same bytes twice": (changed("second", data_offsets=[0, 10]), "tensor 'first' overlaps tensor 'second'"),
    "bytes left over": (changed("third", shape=[3], data_offsets=[34, 37]), "1 bytes after the last tensor"),
    "entry no object": (file_bytes({"first": 3}), "'first': its header entry is not a JSON object"),
    "name twice": (file_bytes(b'{"x": {}, "x": {}}'), "'x' occurs twice"),
    "no object": (file_bytes(b"[]"), "the header is not a JSON object"),
    "no JSON": (file_bytes(b"{"), "the header is not valid"),
    "no UTF-8": (file_bytes(b'{"\xff": 1}'), "the header is not valid"),
    "nested without end": (file_bytes(b"[" * 100_000), "the header is not valid"),
    "another format": (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "is not a safetensors file: it claims a header"),
    "empty": (b"", "has 0 bytes: too short"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_inconsistent_is_refused_by_name(tmp_path: Path, name: str) -> None:
    content, message = WRONG[name]
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        SafetensorsFile(tmp_path / "x.safetensors")
    assert str(tmp_path / "x.safetensors") in str(raised.value) and message in str(raised.value)


@settings(deadline=None)
@given(data=st.data())
def test_a_corrupt_file_is_refused_or_consistent(scratch: Path, data: st.DataObject) -> None:
    content = bytearray(write(scratch, SMALL).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    scratch.write_bytes(content)
    try:
        file = SafetensorsFile(scratch)
    except CheckpointError as error:
        assert str(scratch) in str(error)
    else:
        assert sum(file[name].nbytes for name in file) == sum(tensor.nbytes for tensor in SMALL.values())


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["absent", "directory"])
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"x\.safetensors cannot be read"):
        SafetensorsFile(tmp_path / "x.safetensors")


def test_opening_reads_no_tensor(tmp_path: Path) -> None:
    size = 1 << 33
    header = {"x": {"dtype": CODES[np.dtype(np.float32)], "shape": [size // 4], "data_offsets": [0, size]}}
    content = file_bytes(header)
    with open(tmp_path / "x.safetensors", "wb") as sparse:
        sparse.write(content)
        sparse.truncate(len(content) + size)
    start = time.perf_counter()
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert time.perf_counter() - start < 0.5  # 8 GiB from memory takes some seconds
    assert file.entries["x"].shape == (size // 4,)

"""Lines come as they are in the file, however the bytes arrive."""

from __future__ import annotations

import asyncio
import codecs
import os
import tempfile
import threading
import tracemalloc
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import lines
from engine.batch.lines import Line, LineReader

TEXTS = st.lists(st.sampled_from([b"a", b"bc", b" ", b"\n", b"\r\n", b"\r", b"\xff", b"\x0b", "é\u2028".encode()]))


def file_of(data: bytes) -> BinaryIO:
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (the caller closes it)
    file.write(data)
    file.seek(0)
    return file


def expected(data: bytes) -> list[Line]:
    """The same, by bytes.split."""
    found, end = [], 0
    pieces = data.split(b"\n")
    for index, piece in enumerate(pieces):
        terminated = index < len(pieces) - 1
        end += len(piece) + terminated
        if piece.strip():
            found.append(Line(index, piece.removesuffix(b"\r"), end, terminated))
    return found


async def collect(reader: LineReader) -> list[Line]:
    return [line async for line in reader]


@given(TEXTS.map(b"".join), st.integers(1, 8))
def test_lines_are_those_of_the_file(data: bytes, chunk: int) -> None:
    before = lines.CHUNK_BYTES
    lines.CHUNK_BYTES = chunk
    try:
        with file_of(data) as file:
            assert list(LineReader(file.fileno())) == expected(data)
        with file_of(data) as file:
            assert asyncio.run(collect(LineReader(file.fileno()))) == expected(data)
    finally:
        lines.CHUNK_BYTES = before


@given(st.lists(st.integers(1, 40), max_size=8), st.integers(1, 20))
def test_a_long_line_is_cut_and_can_be_told(lengths: list[int], limit: int) -> None:
    data = b"".join(bytes([ord("a") + number]) * length + b"\n" for number, length in enumerate(lengths))
    with file_of(data) as file:
        found = list(LineReader(file.fileno(), limit))
    assert [line.data for line in found] == [line.data[: limit + 1] for line in expected(data)]
    assert [line.end for line in found] == [line.end for line in expected(data)]


def test_a_line_that_is_too_long_is_not_held() -> None:
    with file_of(b"x" * 50 * 2**20 + b"\nnext") as file:
        tracemalloc.start()
        found = list(LineReader(file.fileno(), 1000))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [len(line.data) for line in found] == [1001, 4]
    assert most < 2**20


def test_a_byte_order_mark_is_no_part_of_a_line() -> None:
    with file_of(codecs.BOM_UTF8 + b"a\n" + codecs.BOM_UTF8 + b"b") as file:
        assert [line.data for line in LineReader(file.fileno())] == [b"a", codecs.BOM_UTF8 + b"b"]


def test_what_was_peeked_at_is_still_there() -> None:
    with file_of(b"\na\n\nb") as file:
        reader = LineReader(file.fileno())
        assert not reader.ended()
        assert next(reader).data == b"a"
        assert not reader.ended()
        assert [line.data for line in asyncio.run(collect(reader))] == [b"b"]
        assert reader.ended()


def test_many_lines_are_read_and_none_is_kept() -> None:
    ours, theirs = os.pipe()

    def write() -> None:
        with open(theirs, "wb") as pipe:
            for number in range(100_000):
                pipe.write(b"%d\n" % number)

    writer = threading.Thread(target=write)
    writer.start()
    reader, total, most = LineReader(ours), 0, 0
    for line in reader:
        total += int(line.data)
        most = max(most, len(reader._lines))
    writer.join()
    os.close(ours)
    assert total == 99_999 * 100_000 // 2
    assert most < lines.CHUNK_BYTES // 2


@pytest.mark.parametrize("told", [b"a", b""], ids=["line", "end"])
def test_a_pipe_is_awaited_without_holding_anything_up(told: bytes) -> None:
    ours, theirs = os.pipe()

    async def main() -> Line | None:
        waiting = asyncio.create_task(anext(LineReader(ours), None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()  # and this line is run
        os.write(theirs, told)
        os.close(theirs)
        return await asyncio.wait_for(waiting, 10)

    try:
        line = asyncio.run(main())
    finally:
        os.close(ours)
    assert (b"" if line is None else line.data) == told

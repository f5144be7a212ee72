"""The lines of a file or a pipe, none of them held for longer than it is needed."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections import deque
from dataclasses import dataclass

CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class Line:
    """A line that holds something."""

    index: int  # from 0, blank lines counted
    data: bytes  # without the line's end; of a line that is too long the first bytes, one more than may be
    end: int  # bytes of the file up to the next line
    terminated: bool  # does it have a line's end? Only the last one may have none


class LineReader:
    """Gives the lines of a file descriptor, either now (`for`) or as they come (`async for`).

    A line ends with LF or CR LF. Blank lines are passed over, and so is the byte order mark of a file that has one.
    limit: bytes of a line that are kept, plus one by which its reader can tell that it is longer; None keeps all.
    """

    def __init__(self, descriptor: int, limit: int | None = None) -> None:
        self._descriptor = descriptor
        self._room = None if limit is None else limit + 1
        self._lines: deque[Line] = deque()  # read and not given yet: what a chunk holds at most
        self._part = bytearray()  # of a line whose end has not been read
        self._part_bytes = 0  # how long that is, with what is not kept of it
        self._num_lines = 0
        self._num_bytes = 0  # of the lines in full
        self._at_end = False

    def __iter__(self) -> LineReader:
        return self

    def __next__(self) -> Line:
        if self.ended():
            raise StopIteration
        return self._lines.popleft()

    def __aiter__(self) -> LineReader:
        return self

    async def __anext__(self) -> Line:
        while not self._lines and not self._at_end:
            await _readable(self._descriptor)
            self._read()
        if not self._lines:
            raise StopAsyncIteration
        return self._lines.popleft()

    def ended(self) -> bool:
        """Is there no further line? Waits until that is known."""
        while not self._lines and not self._at_end:
            self._read()
        return not self._lines

    def _read(self) -> None:
        chunk = os.read(self._descriptor, CHUNK_BYTES)
        if not chunk:
            self._at_end = True
            if self._part_bytes:
                self._end_line(terminated=False)
            return
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._add(piece)
            self._end_line(terminated=True)
        self._add(rest)

    def _add(self, piece: bytes) -> None:
        self._part += piece if self._room is None else piece[: max(0, self._room - len(self._part))]
        self._part_bytes += len(piece)

    def _end_line(self, *, terminated: bool) -> None:
        data = bytes(self._part)
        if self._num_lines == 0:
            data = data.removeprefix(codecs.BOM_UTF8)
        self._num_bytes += self._part_bytes + terminated
        if data.strip():
            self._lines.append(Line(self._num_lines, data.removesuffix(b"\r"), self._num_bytes, terminated))
        self._num_lines += 1
        self._part.clear()
        self._part_bytes = 0


async def _readable(descriptor: int) -> None:
    """Wait until a read would not."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a regular file, which is never waited for
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)

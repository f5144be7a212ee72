"""The files of a run. What is written is so written that an end at any moment leaves whole lines and one torn."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.usage import UsageError

STANDARD = "-"  # names stdin and stdout
SYNC_SECONDS = 5.0  # a power loss costs what was written since


class AnswerFile:
    """The output. A regular file is locked against a second run; anything else (a pipe, a terminal) is written to."""

    def __init__(self, descriptor: int, name: str, *, is_stream: bool) -> None:
        self.descriptor = descriptor
        self.name = name
        self.is_stream = is_stream
        self.size = 0  # bytes, from `cut` on
        self._synced = time.monotonic()

    def cut(self, size: int) -> None:
        """Keep the first bytes of a regular file, and go on after them."""
        if not self.is_stream:
            os.ftruncate(self.descriptor, size)
            os.lseek(self.descriptor, size, os.SEEK_SET)
        self.size = size

    def write(self, line: bytes) -> None:
        """Write a line, in one piece where the system takes it so."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]
        self.size += len(line)
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Have what was written survive a power loss."""
        if not self.is_stream:
            os.fsync(self.descriptor)
            self._synced = time.monotonic()


@contextmanager
def open_input(name: str) -> Iterator[int]:
    """A file descriptor to read from. Errors: UsageError."""
    if name == STANDARD:
        yield sys.stdin.fileno()
        return
    with _told("read", name):
        descriptor = os.open(name, os.O_RDONLY)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise UsageError(f"cannot read {name}: it is a directory")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_output(name: str) -> Iterator[AnswerFile]:
    """The file to write to, made if it is not there, and unchanged until it is cut. Errors: UsageError."""
    if name == STANDARD:
        sys.stdout.flush()
        yield AnswerFile(sys.stdout.fileno(), "stdout", is_stream=True)
        return
    with _told("write", name):
        is_new = not os.path.lexists(name)
        is_stream = not is_new and not stat.S_ISREG(os.stat(name).st_mode)
        descriptor = os.open(name, os.O_WRONLY if is_stream else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not is_stream:
            _lock(descriptor, name)
        if is_new:
            _sync_directory(Path(name).absolute().parent)
        yield AnswerFile(descriptor, name, is_stream=is_stream)
    finally:
        os.close(descriptor)


def is_same_file(one: int, other: int) -> bool:
    """Are both one regular file?"""
    status = os.fstat(one)
    return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(other))


def regular_size(descriptor: int) -> int | None:
    """Bytes of a regular file; None for anything else."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _told(what: str, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot {what} {name}: {error.strerror}") from error


def _lock(descriptor: int, name: str) -> None:
    """The lock ends with the process, however that ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another run writes to {name}; wait for its end, or name another --output") from None
    except OSError:  # some network file systems have no locks
        pass


def _sync_directory(directory: Path) -> None:
    """Have a new file's name survive a power loss."""
    with suppress(OSError):  # some file systems cannot
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""Compiled kernels on disk, for all processes of a machine.

An entry is one file, written beside its place and renamed into it, so a reader sees all of it or nothing. A file that
is damaged is set aside, and the kernel is built anew. While one process builds, a lock makes others that ask for the
same kernel wait for it. A folder that cannot be read or written is no error: kernels are then built by each process,
and one warning says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from filelock import FileLock

from optimized.compile.artifact import Artifact

log = logging.getLogger(__name__)


class DiskCache:
    """A folder of compiled kernels, each under its key."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str) -> Path:
        return self.directory / f"{key}.kernel"

    def get(self, key: str) -> Artifact | None:
        """An entry, or None where there is none that can be read and is whole."""
        try:
            return Artifact.decode(self.path(key).read_bytes())
        except (OSError, ValueError):
            return None

    def get_or_build(self, key: str, build: Callable[[], Artifact]) -> Artifact:
        """An entry; if there is none, one of all processes that ask for it builds it. Where nothing can be kept, each
        builds its own. Errors: those of `build`."""
        artifact = self.get(key)
        if artifact is not None:
            return artifact
        lock = FileLock(self.path(key).with_suffix(".lock"))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
            _warn(self.directory, error)
            return build()
        try:
            artifact = self.get(key)
            if artifact is None:
                artifact = build()
                self._keep(key, artifact)
            return artifact
        finally:
            lock.release()

    def _keep(self, key: str, artifact: Artifact) -> None:
        """Under the lock."""
        try:
            self._set_aside(key)
            self._put(key, artifact)
        except OSError as error:
            _warn(self.directory, error)

    def _set_aside(self, key: str) -> None:
        """What stands in a new entry's place could not be used; it is kept for whoever looks for the cause."""
        path = self.path(key)
        if path.exists():
            aside = path.with_suffix(".damaged")
            log.warning(
                "the compiled kernel %s is damaged, or cannot be read; it is kept as %s, and built anew",
                path,
                aside.name,
            )
            path.replace(aside)

    def _put(self, key: str, artifact: Artifact) -> None:
        part = self.directory / f"{key}.{token_hex(8)}.part"
        try:
            with open(part, "xb") as file:  # as the umask says: others may share the cache
                file.write(artifact.encode())
            part.replace(self.path(key))
        except BaseException:
            part.unlink(missing_ok=True)
            raise


_warned: set[Path] = set()


def _warn(directory: Path, error: Exception) -> None:
    """Once for each folder."""
    if directory not in _warned:
        _warned.add(directory)
        log.warning("compiled kernels are not kept in %s: %s", directory, error)

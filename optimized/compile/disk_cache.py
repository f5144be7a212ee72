"""Compiled kernels on disk, for all processes of a machine.

An entry is one file, written beside its place and renamed into it, so a reader sees all of it or nothing. A file that
is damaged is set aside, and the kernel is built anew. While one process builds, a lock makes others that ask for the
same kernel wait for it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

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
        """An entry, or None where there is none that is whole."""
        try:
            return Artifact.decode(self.path(key).read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def get_or_build(self, key: str, build: Callable[[], Artifact]) -> Artifact:
        """An entry; if there is none, one of all processes that ask for it builds it. Errors: those of `build`."""
        artifact = self.get(key)
        if artifact is not None:
            return artifact
        self.directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path(key).with_suffix(".lock")):
            artifact = self.get(key)
            if artifact is None:
                self._set_aside(key)
                artifact = build()
                self._put(key, artifact)
            return artifact

    def _set_aside(self, key: str) -> None:
        """Under the lock: what stands in a new entry's place is damaged; it is kept for whoever looks for the cause."""
        path = self.path(key)
        if path.exists():
            aside = path.with_suffix(".damaged")
            log.warning("the compiled kernel %s is damaged; it is kept as %s, and built anew", path, aside.name)
            path.replace(aside)

    def _put(self, key: str, artifact: Artifact) -> None:
        with tempfile.NamedTemporaryFile(dir=self.directory, prefix=f"{key}.", suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(artifact.encode())
                file.close()
                part.replace(self.path(key))
            except BaseException:
                part.unlink(missing_ok=True)
                raise

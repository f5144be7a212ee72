"""Compiled kernels of this process: from memory, from disk, or built now.

Loading an object that is on disk takes milliseconds; building one, tenths of a second to seconds.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from optimized.compile.arch import Arch
from optimized.compile.artifact import Artifact
from optimized.compile.build import build
from optimized.compile.disk_cache import DiskCache
from optimized.compile.kernel import Kernel
from optimized.compile.key import compile_key


class Library:
    """Kernels by constants and architecture. Threads may share one."""

    def __init__(self, directories: tuple[Path, ...]) -> None:
        """directories: caches, asked in order; what is built goes to the first."""
        self._caches = [DiskCache(directory) for directory in directories]
        self._loaded: dict[tuple[Kernel, str], Callable[..., None]] = {}
        self._lock = threading.Lock()

    def artifact(self, kernel: Kernel, arch: Arch, *, line_info: bool = False) -> Artifact:
        """What was compiled. line_info: see `build`. Errors: CompileError."""
        key = compile_key(kernel, arch, line_info=line_info)
        found = (one.get(key) for one in self._caches)
        artifact = next((one for one in found if one is not None), None)
        return artifact or self._caches[0].get_or_build(key, lambda: build(kernel, arch, line_info=line_info))

    def load(self, kernel: Kernel, arch: Arch) -> Callable[..., None]:
        """The host function, to be called with tensors in the order of `Kernel.arguments`."""
        name = (kernel, arch.name)
        function = self._loaded.get(name)
        if function is None:
            with self._lock:
                function = self._loaded.get(name)
                if function is None:
                    function = self._loaded[name] = _loaded(self.artifact(kernel, arch))
        return function


def _loaded(artifact: Artifact) -> Callable[..., Any]:
    from cutlass.cute.runtime import load_module

    with tempfile.TemporaryDirectory(prefix="diptych-load-") as name:
        file = Path(name) / "kernel.o"
        file.write_bytes(artifact.object)
        return load_module(str(file), enable_tvm_ffi=True)[artifact.function]


_CHOSEN: list[Path] = []  # by `keep_in`, the last one counts


def keep_in(base: Path) -> None:
    """Have this process keep what it compiles there, instead of where the environment says."""
    if [base] != _CHOSEN[-1:]:
        _CHOSEN.append(base)
        library.cache_clear()


def cache_directories() -> tuple[Path, ...]:
    """Where compiled kernels are: in the cache ($DIPTYCH_CACHE, or else ~/.cache/diptych), where new ones are kept too;
    then in the folders that DIPTYCH_KERNELS lists as PATH does, which `diptych compile --out` may have filled.

    Errors: FileNotFoundError without a home."""
    base = _CHOSEN[-1] if _CHOSEN else Path(os.path.expanduser(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych"))
    if base.parts[0].startswith("~"):  # a user that is in no passwd file, as in some containers
        raise FileNotFoundError(f"there is no home directory for the cache {base}: set DIPTYCH_CACHE to a folder")
    listed = os.environ.get("DIPTYCH_KERNELS", "").split(os.pathsep)
    return base / "kernels", *(Path(one) for one in listed if one)


@cache
def library() -> Library:
    """The one of this process."""
    return Library(cache_directories())

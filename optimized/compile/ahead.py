"""Building kernels ahead of time, many at once, on a machine that need not have a GPU."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from optimized.compile.arch import Arch
from optimized.compile.artifact import Artifact
from optimized.compile.build import build
from optimized.compile.disk_cache import DiskCache
from optimized.compile.kernel import Kernel
from optimized.compile.key import compile_key


def build_all(
    kernels: Collection[tuple[Kernel, Arch]],
    directory: Path,
    *,
    jobs: int,
    built: Callable[[Kernel, Arch, Artifact], None] = lambda *_: None,
) -> None:
    """Put every kernel that is not there yet into a folder that `Library` reads. built: told of each one, as it comes.

    Errors: CompileError of the first that fails; what was built before it stays.
    """
    if not kernels:
        return
    # A fresh process each: the compiler keeps threads, which a fork would lose.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(kernels)), context) as pool:
        waiting = {pool.submit(_built, kernel, arch, directory): (kernel, arch) for kernel, arch in kernels}
        try:
            for future in as_completed(waiting):
                built(*waiting[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _built(kernel: Kernel, arch: Arch, directory: Path) -> Artifact:
    return DiskCache(directory).get_or_build(compile_key(kernel, arch), lambda: build(kernel, arch))

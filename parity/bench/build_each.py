"""Building what is to be measured, of which some may not compile."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from optimized.compile.ahead import build_all
from optimized.compile.arch import Arch
from optimized.compile.build import CompileError
from optimized.compile.disk_cache import DiskCache
from optimized.compile.kernel import Kernel
from optimized.compile.key import compile_key
from optimized.compile.library import cache_directories


def build_each(kernels: Iterable[Kernel], arch: Arch, *, jobs: int) -> dict[Kernel, str]:
    """Put into the cache of this process all kernels that are in none of its caches. Those that do not compile, and
    why."""
    directories = cache_directories()
    caches = [DiskCache(one) for one in directories]

    def missing(some: Iterable[Kernel]) -> list[tuple[Kernel, Arch]]:
        keys = {kernel: compile_key(kernel, arch) for kernel in some}
        return [(kernel, arch) for kernel, key in keys.items() if all(one.get(key) is None for one in caches)]

    failed: dict[Kernel, str] = {}

    def alone(one: tuple[Kernel, Arch]) -> None:
        try:
            build_all([one], directories[0], jobs=1)
        except (CompileError, BrokenProcessPool) as error:
            failed[one[0]] = str(error).removeprefix(f"{one[0]} ")

    waiting = missing(kernels)
    try:
        build_all(waiting, directories[0], jobs=jobs)
    except (CompileError, BrokenProcessPool):
        # The first that fails ends it for all. Each of the rest gets a process of its own, so that a compiler that
        # crashes takes no other kernel with it.
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(alone, missing(kernel for kernel, _ in waiting)))
    return failed

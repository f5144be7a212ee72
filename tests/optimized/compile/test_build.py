"""Building kernels without a GPU, and finding them again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optimized.compile.arch import ARCHS, SM_90A, SM_100A, Arch
from optimized.compile.build import CompileError, build
from optimized.compile.cubin import resources_of
from optimized.compile.kernel import Kernel
from optimized.compile.library import Library, cache_directories
from tests.optimized.fakes import Scale


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_a_kernel_compiles_for_each_architecture(arch: Arch) -> None:
    built = build(Scale(2.0), arch)
    assert f".target {arch.name}" in built.ptx
    assert built.arch == arch.name and built.function == Scale(2.0).symbol
    [resources] = built.resources
    assert resources.kernel in built.ptx
    assert 0 < resources.registers <= 255 and resources.local_bytes == 0
    assert b"\x7fELF" in built.object[:4]


def test_a_cache_filled_for_one_arch_never_serves_another(tmp_path: Path) -> None:
    kernels = Library((tmp_path,))
    hopper = kernels.artifact(Scale(2.0), SM_90A)
    blackwell = kernels.artifact(Scale(2.0), SM_100A)
    assert (hopper.arch, blackwell.arch) == ("sm_90a", "sm_100a")
    assert ".target sm_100a" in blackwell.ptx and ".target sm_90a" in hopper.ptx
    again = Library((tmp_path,))
    assert again.artifact(Scale(2.0), SM_100A) == blackwell, "and what is found is what was built"


def test_a_folder_that_was_filled_ahead_of_time_is_found(tmp_path: Path) -> None:
    ahead = Library((tmp_path / "ahead",)).artifact(Scale(2.0), SM_90A)
    kernels = Library((tmp_path / "own", tmp_path / "ahead"))
    assert kernels.artifact(Scale(2.0), SM_90A) == ahead
    assert not (tmp_path / "own").exists()


def test_a_cached_kernel_loads_in_milliseconds(tmp_path: Path) -> None:
    """The bound is loose for a busy machine; building takes tenths of a second."""
    built = Library((tmp_path,)).artifact(Scale(2.0), SM_90A)
    Library((tmp_path,)).load(Scale(2.0), SM_90A)  # imports
    kernels = Library((tmp_path,))
    start = time.perf_counter()
    function = kernels.load(Scale(2.0), SM_90A)
    seconds = time.perf_counter() - start
    assert seconds < min(0.1, built.compile_seconds)
    assert kernels.load(Scale(2.0), SM_90A) is function


@dataclass(frozen=True)
class Broken(Scale):
    def arguments(self) -> tuple[Any, ...]:
        raise TypeError("no such tensor")


def test_a_kernel_that_does_not_compile_is_named() -> None:
    with pytest.raises(CompileError, match=r"Broken\(factor=2\.0.*sm_90a: no such tensor"):
        build(Broken(2.0), SM_90A)


def test_no_cubin_is_an_error() -> None:
    with pytest.raises(ValueError, match="ELF"):
        resources_of(b"not a cubin")


def test_where_kernels_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path))
    monkeypatch.delenv("DIPTYCH_KERNELS", raising=False)
    assert cache_directories() == (tmp_path / "kernels",)
    monkeypatch.setenv("DIPTYCH_KERNELS", "/a:/b:")
    assert cache_directories() == (tmp_path / "kernels", Path("/a"), Path("/b"))


def test_constants_are_what_json_holds() -> None:
    assert Scale(2.0).constants == {"factor": 2.0, "dtype": "float32"}
    assert isinstance(Scale(2.0), Kernel)

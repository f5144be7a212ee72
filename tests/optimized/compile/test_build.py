"""Building kernels without a GPU, and finding them again."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cutlass
import pytest
from cutlass import cute
from cutlass.memory import SmemAllocator

from engine.cache import cache_directory
from optimized.compile import key
from optimized.compile.arch import ARCHS, SM_90A, SM_100A, Arch
from optimized.compile.build import CompileError, build
from optimized.compile.cubin import resources_of
from optimized.compile.host_code import dynamic_shared_bytes
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


@dataclass(frozen=True)
class Sharing(Scale):
    """Takes some shared memory, in two pieces."""

    first: int = 100
    second: int = 8

    @cute.jit
    def __call__(self, mX: cute.Tensor, mOut: cute.Tensor, stream: Any) -> None:
        self.kernel(mX, mOut).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mOut: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        sFirst = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(self.first))
        sSecond = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(self.second))
        sFirst[thread] = mX[thread]
        sSecond[thread % 8] = mX[thread]
        cute.arch.sync_threads()
        mOut[thread] = sFirst[63 - thread] + sSecond[0]


@pytest.mark.parametrize("arch", [SM_90A, SM_100A], ids=lambda arch: arch.name)
def test_the_shared_memory_of_a_launch_is_known(arch: Arch) -> None:
    """It is dynamic: the cubin says 0, and 1 KiB that is the system's."""
    [none], [some] = build(Scale(2.0), arch).resources, build(Sharing(2.0), arch).resources
    assert none.shared_bytes == 0
    assert 432 <= some.shared_bytes <= 432 + 64, "both pieces, and what aligns them"
    [more] = build(replace(Sharing(2.0), first=20_000), arch).resources
    assert more.shared_bytes - some.shared_bytes == 4 * (20_000 - 100)


def test_more_shared_memory_than_a_block_may_have_is_refused() -> None:
    with pytest.raises(CompileError, match=r"Sharing.* takes 4\d{5} bytes of shared memory a block; sm_90a has 232448"):
        build(replace(Sharing(2.0), first=100_000), SM_90A)


def test_host_code_that_does_not_say_how_much_shared_memory() -> None:
    config = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"
    launch = f"""%1 = llvm.mlir.constant(48 : i64) : i64
    %2 = llvm.getelementptr %0[0, 2] : (!llvm.ptr) -> !llvm.ptr, {config}
    llvm.store %1, %2 : i64, !llvm.ptr
    """
    assert dynamic_shared_bytes(f"llvm.func @f() {{ {launch} }} llvm.func @g() {{ }}") == 48
    twice = f"llvm.func @f() {{ {launch} }} llvm.func @g() {{ {launch} }}"
    for text in ("", twice, launch.replace("store %1", "store %9")):
        with pytest.raises(ValueError, match="so much shared memory as is known"):
            dynamic_shared_bytes(text)


def test_sources_that_change_while_they_are_compiled_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler reads kernels from their files: what it built is not what the key says."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "kernel.py").write_text("x = 1\n")
    monkeypatch.setattr(key, "_ROOT", source)
    monkeypatch.setattr(key, "_LOADED", key.source_hash())

    class Edited(Scale):
        def arguments(self) -> tuple[Any, ...]:
            (source / "kernel.py").write_text("x = 2\n")
            return super().arguments()

    cache = tmp_path / "cache"
    kernels = Library((cache,))
    kernels.artifact(Scale(2.0), SM_90A)
    with pytest.raises(CompileError, match=r"the sources changed while .*: run again"):
        kernels.artifact(Edited(3.0), SM_90A)
    assert len(list(cache.glob("*.kernel"))) == 1
    with pytest.raises(CompileError, match="the sources changed"):
        kernels.artifact(Scale(4.0), SM_90A)
    assert kernels.artifact(Scale(2.0), SM_90A), "what was built from the text of its key is still found"


def test_no_cubin_is_an_error() -> None:
    with pytest.raises(ValueError, match="ELF"):
        resources_of(b"not a cubin")


def test_where_kernels_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path))
    monkeypatch.delenv("DIPTYCH_KERNELS", raising=False)
    assert cache_directories() == (tmp_path / "kernels",)
    monkeypatch.setenv("DIPTYCH_KERNELS", "/a:/b:")
    assert cache_directories() == (tmp_path / "kernels", Path("/a"), Path("/b"))


def test_without_a_home_the_error_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIPTYCH_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user that is in no passwd file
    with pytest.raises(FileNotFoundError) as of_engine:
        cache_directory()
    with pytest.raises(FileNotFoundError) as of_panel:
        cache_directories()
    assert str(of_panel.value) == str(of_engine.value)


def test_constants_are_what_json_holds() -> None:
    assert Scale(2.0).constants == {"factor": 2.0, "dtype": "float32"}
    assert isinstance(Scale(2.0), Kernel)

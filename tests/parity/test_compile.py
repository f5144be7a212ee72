"""Every twin compiles for every architecture, and its machine code keeps what was promised, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimized.compile.arch import ARCHS, SM_90A, SM_100A, Arch
from optimized.compile.build import build
from optimized.compile.library import Library
from optimized.kernels.rms_norm import RmsNorm
from parity.cases import names, twin_named
from parity.executors.compile_only import CompileExecutor, check_promises, widest_access
from parity.executors.executor import Fault
from parity.harness import configurations, try_case

EACH = pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
NORM = RmsNorm(1024, "bfloat16", "bfloat16", 1e-6, 0.0, vector=8, vectors=1, threads_per_row=128, rows_per_block=1)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library((tmp_path_factory.mktemp("kernels"),))


def failures(name: str, arch: Arch, kernels: Library, *, every: int) -> list[str | None]:
    """Of every so manyth corner."""
    twin, executor = twin_named(name), CompileExecutor(arch, kernels)
    records = [try_case(twin, config, executor) for config in [*configurations(twin, searched=0)][::every]]
    assert records and any(record.kernels for record in records), "nothing was compiled"
    return [record.reason for record in records if not record.ok]


@EACH
@pytest.mark.parametrize("name", names())
def test_some_corners(name: str, arch: Arch, kernels: Library) -> None:
    assert failures(name, arch, kernels, every=23) == []


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("name", names())
def test_all_corners(name: str, arch: Arch, kernels: Library) -> None:
    assert failures(name, arch, kernels, every=1) == []


def test_accesses_are_as_wide_as_the_chip_allows() -> None:
    assert widest_access(build(NORM, SM_90A).ptx) == 16, "128 bits on Hopper"
    assert widest_access(build(replace(NORM, vector=16, threads_per_row=64), SM_100A).ptx) == 32, "256 on Blackwell"


def test_narrow_accesses_do_not_keep_the_promise_of_wide_ones() -> None:
    """The negative control."""
    narrow = build(replace(NORM, vector=2, vectors=4), SM_90A)
    with pytest.raises(Fault, match="promises accesses of 16 bytes; the widest in its PTX has 4"):
        check_promises(NORM, narrow, 0)


def test_spilled_registers_are_a_fault() -> None:
    built = build(NORM, SM_90A)
    spilled = replace(built, resources=tuple(replace(one, local_bytes=64) for one in built.resources))
    check_promises(NORM, spilled, 64)
    with pytest.raises(Fault, match="uses 64 bytes of local memory a thread; 0 are expected"):
        check_promises(NORM, spilled, 0)

"""Every twin compiles for every architecture, and its machine code keeps what was promised, without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from optimized.compile.arch import ARCHS, SM_90A, SM_100A, Arch
from optimized.compile.artifact import Artifact
from optimized.compile.build import build
from optimized.compile.kernel import Kernel
from optimized.compile.library import Library
from optimized.kernels.add_rms_norm import AddRmsNorm
from optimized.kernels.moe_prefill import MoeRoute
from optimized.kernels.rms_norm import RmsNorm
from parity.cases import names, twin_named
from parity.executors.compile_only import CompileExecutor, check_promises, widest_access
from parity.executors.executor import Fault
from parity.harness import configurations, try_case
from tests.parity.host import ADD_RMS_NORM, CORNER, planted

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
    return [record.reason for record in records if record.status == "fail"]


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param(name, arch, id=f"{name}-{arch.name}")
        for name in names()
        for arch in ARCHS.values()
        if not twin_named(name).library or (name, arch) == ("linear_many_rows", SM_100A)
    ],
)
def test_some_corners(name: str, arch: Arch, kernels: Library) -> None:
    """Of what stands on libraries' kernels, which take seconds each, one; Hopper's are simulated (`test_simulated`)."""
    assert failures(name, arch, kernels, every=1000 if twin_named(name).library else 60) == []


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("name", names())
def test_all_corners(name: str, arch: Arch, kernels: Library) -> None:
    assert failures(name, arch, kernels, every=1) == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("nothing_returned", "1 outputs are returned; there are 2"),
        ("nothing_launched", r"normed is of shape \[9, 256\], and nothing is launched that writes it"),
        ("another_dtype_returned", r"normed is returned as float32\[0, 256\]; the reference's is bfloat16\[9, 256\]"),
        ("another_shape_returned", r"normed is returned as bfloat16\[0, 256\]; the reference's is bfloat16\[9, 256\]"),
        ("another_residual_returned", "what is returned as residual is not the input residual"),
    ],
)
def test_what_is_returned_is_looked_at(fault: str, told: str, kernels: Library) -> None:
    record = try_case(planted(ADD_RMS_NORM, fault), CORNER, CompileExecutor(SM_90A, kernels))
    assert record.status == "fail" and record.reason is not None and re.search(told, record.reason), record.reason


@pytest.mark.parametrize("arch", [SM_90A, SM_100A], ids=lambda arch: arch.name)
def test_an_address_is_what_host_code_sees(arch: Arch) -> None:
    """Accesses of as many bytes as all tensors allow."""
    twin, seen = twin_named("rms_norm"), []

    class Watched(Library):
        def artifact(self, kernel: Kernel, arch: Arch, *, line_info: bool = False) -> Artifact:
            seen.append(kernel)
            raise Fault("this is not compiled")

    base = next(config for config in twin.corners() if config["tokens"])
    for offset in (0, 1, 8, {"x": 1}, {"weight": 2}):
        record = try_case(twin, {**base, "offset": offset}, CompileExecutor(arch, Watched(())))
        assert record.reason == "this is not compiled"
    assert [kernel.widest_access for kernel in seen] == [arch.vector_bytes, 2, 16, 2, 4]


def test_accesses_are_as_wide_as_the_chip_allows() -> None:
    for what in ("load", "store"):
        assert widest_access(build(NORM, SM_90A).ptx, what) == 16, "128 bits on Hopper"
        built = build(replace(NORM, vector=16, threads_per_row=64), SM_100A)
        assert widest_access(built.ptx, what) == 32, "256 on Blackwell"


def test_narrow_accesses_do_not_keep_the_promise_of_wide_ones() -> None:
    """The negative control."""
    narrow = build(replace(NORM, vector=2, vectors=4), SM_90A)
    with pytest.raises(Fault, match="promises a load of 16 bytes; the widest in its PTX has 4"):
        check_promises(NORM, narrow, 0)


@pytest.mark.parametrize(("kind", "what"), [("ld", "load"), ("st", "store")])
def test_narrow_loads_are_not_hidden_by_wide_stores_nor_the_other_way(kind: str, what: str) -> None:
    built = build(NORM, SM_90A)
    ptx = re.sub(rf"\b{kind}\.global\S*\.v4\.[bf]32\b", f"{kind}.global.b32", built.ptx)
    assert ptx != built.ptx
    with pytest.raises(Fault, match=f"promises a {what} of 16 bytes; the widest in its PTX has 4"):
        check_promises(NORM, replace(built, ptx=ptx), 0)


def test_rows_that_may_be_overwritten_are_read_first() -> None:
    """Outputs of a residual sum may be its inputs: all loads stand before the first store, none by the path that may
    show what was there before."""
    shape = {"vector": 8, "vectors": 2, "threads_per_row": 64, "rows_per_block": 2}
    ptx = build(AddRmsNorm(1024, "bfloat16", "bfloat16", 1e-6, 0.0, **shape), SM_90A).ptx
    assert ptx.rindex("ld.global") < ptx.index("st.global")
    assert "ld.global.nc" not in ptx


def test_blocks_that_wait_must_all_be_resident() -> None:
    """By what the compiled kernel takes, whatever host code planned."""
    kernel = MoeRoute(8, 128, 128, blocks=132, items=8)
    built = build(kernel, SM_90A)
    [taken] = built.resources
    assert taken.shared_bytes > 10_000, "it counts in shared memory"
    check_promises(kernel, built, 0)

    def with_more(**more: int) -> Artifact:
        return replace(built, resources=(replace(taken, **more),))

    check_promises(kernel, with_more(registers=128, shared_bytes=232448), 0)
    with pytest.raises(
        Fault, match=r"132 blocks wait for each other, and sm_90a with 132 multiprocessors holds 0 at once"
    ):
        check_promises(kernel, with_more(registers=136), 0)
    with pytest.raises(Fault, match="takes 232449 bytes of shared memory a block; sm_90a has fewer"):
        check_promises(kernel, with_more(shared_bytes=232449), 0)
    with pytest.raises(
        Fault, match=r"265 blocks wait for each other, and sm_90a with 132 multiprocessors holds \d+ at"
    ):
        check_promises(replace(kernel, blocks=265), with_more(registers=64), 0)
    with pytest.raises(Fault, match="does not say how many threads"):
        check_promises(kernel, replace(built, ptx=built.ptx.replace(".reqntid", "//")), 0)


def test_spilled_registers_are_a_fault() -> None:
    built = build(NORM, SM_90A)
    spilled = replace(built, resources=tuple(replace(one, local_bytes=64) for one in built.resources))
    check_promises(NORM, spilled, 64)
    with pytest.raises(Fault, match="uses 64 bytes of local memory a thread; 0 are expected"):
        check_promises(NORM, spilled, 0)

"""`cp.async`: what is there after a wait, and what is not before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError
from simulators.gpu.gpu import Gpu
from tests.simulators.gpu.instructions.boxes import aligned
from tests.simulators.gpu.launching import kernel, run

VARIABLES = ".shared .align 16 .b8 tile[4096]; .shared .align 8 .b64 bar;"
# %rd11: 16 bytes of %rd1 for each thread; %r11 and %r12: two places of 16 bytes in shared memory; %rd12: of %rd2.
PLACES = """
mov.u32 %r3, %ntid.x;
mad.lo.s32 %r4, %r2, %r3, %r1;
mul.wide.u32 %rd10, %r4, 16;
add.s64 %rd11, %rd1, %rd10;
add.s64 %rd12, %rd2, %rd10;
mov.u32 %r9, tile;
shl.b32 %r10, %r1, 4;
add.s32 %r11, %r9, %r10;
add.s32 %r12, %r11, 2048;
mov.b32 %r20, 0x7f7f7f7f;
st.shared.v4.b32 [%r11], {%r20, %r20, %r20, %r20};
st.shared.v4.b32 [%r12], {%r20, %r20, %r20, %r20};
bar.sync 0;
"""
OUT = """
ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r11];
st.global.v4.b32 [%rd12], {%r20, %r21, %r22, %r23};
"""
OLD = 0x7F


def copied(body: str, block: int = 64, grid: int = 2, seed: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """The source, and what the kernel wrote: u8 [threads, 16]."""
    source = aligned(np.random.default_rng(0).integers(0, 256, (grid * block, 16), np.uint8))
    out = aligned(np.zeros_like(source))
    gpu = Gpu(H200, seed=seed)
    run(kernel(PLACES + body + OUT, 2, VARIABLES), [source, out], grid=grid, block=block, gpu=gpu)
    return source, out


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("wait", ["cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;"])
def test_copies(size: int, wait: str, seed: int | None) -> None:
    cache = "cg" if size == 16 else "ca"
    source, out = copied(f"cp.async.{cache}.shared.global.L2::128B [%r11], [%rd11], {size}; {wait}", seed=seed)
    assert np.array_equal(out[:, :size], source[:, :size]) and (out[:, size:] == OLD).all()


def test_nothing_is_there_before_the_wait() -> None:
    _, out = copied("cp.async.cg.shared.global [%r11], [%rd11], 16; cp.async.commit_group;")
    assert (out == OLD).all()


def test_a_hostile_schedule_does_some_copies_at_once() -> None:
    body = "cp.async.cg.shared.global [%r11], [%rd11], 16; cp.async.commit_group;"
    early = [np.array_equal(*copied(body, block=32, grid=1, seed=seed)) for seed in range(10)]
    assert any(early) and not all(early)


@pytest.mark.parametrize("wait", ["wait_group 1", "wait_group 0"])
def test_the_newest_groups_may_be_left(wait: str) -> None:
    body = f"""
    cp.async.ca.shared.global [%r11], [%rd11], 4;
    cp.async.ca.shared.global [%r11+4], [%rd11+4], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r11+8], [%rd11+8], 8;
    cp.async.commit_group;
    cp.async.{wait};
    """
    source, out = copied(body)
    there = 8 if wait == "wait_group 1" else 16
    assert np.array_equal(out[:, :there], source[:, :there]) and (out[:, there:] == OLD).all()


def test_each_thread_waits_for_its_own_copies() -> None:
    body = """
    cp.async.cg.shared.global [%r11], [%rd11], 16;
    cp.async.commit_group;
    setp.lt.u32 %p1, %r1, 10;
    @%p1 cp.async.wait_group 0;
    """
    source, out = copied(body, grid=1)
    assert np.array_equal(out[:10], source[:10]) and (out[10:] == OLD).all()


@pytest.mark.parametrize("read", [0, 1, 5, 15, 16])
def test_the_rest_of_the_source_is_zeros(read: int) -> None:
    source, out = copied(
        f"mov.b32 %r13, {read}; cp.async.cg.shared.global [%r11], [%rd11], 16, %r13; cp.async.wait_all;"
    )
    assert np.array_equal(out[:, :read], source[:, :read]) and not out[:, read:].any()


def test_sizes_and_predicates_by_thread() -> None:
    body = "and.b32 %r13, %r1, 15; cp.async.cg.shared.global [%r11], [%rd11], 16, %r13; cp.async.wait_all;"
    source, out = copied(body)
    kept = np.arange(16) < (np.arange(len(out)) % 64 % 16)[:, None]
    assert np.array_equal(out, np.where(kept, source, 0))
    body = """
    setp.lt.u32 %p1, %r1, 7;
    @%p1 mov.b64 %rd11, 0;
    cp.async.cg.shared.global.L2::cache_hint [%r11], [%rd11], 16, %p1, %rd1;
    cp.async.wait_all;
    """
    source, out = copied(body, grid=1)
    assert not out[:7].any() and np.array_equal(out[7:], source[7:])


NOINC = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r14];", 64
COUNTED = "cp.async.mbarrier.arrive.shared.b64 [%r14]; mbarrier.arrive.shared.b64 _, [%r14];", 64


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize(("arrive", "count"), [NOINC, COUNTED])
def test_an_mbarrier_is_told(arrive: str, count: int, seed: int | None) -> None:
    """Every thread reads its neighbour's copy."""
    body = f"""
    mov.u32 %r14, bar;
    setp.ne.s32 %p1, %r1, 0;
    @!%p1 mbarrier.init.shared.b64 [%r14], {count};
    bar.sync 0;
    cp.async.cg.shared.global [%r11], [%rd11], 16;
    {arrive}
    cp.async.cg.shared.global [%r12], [%rd11], 16;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r14], 0; @!%p2 bra WAIT;
    xor.b32 %r10, %r10, 16;
    add.s32 %r11, %r9, %r10;
    """
    source, out = copied(body, seed=seed)
    assert np.array_equal(out, source.reshape(-1, 2, 16)[:, ::-1].reshape(-1, 16))


def test_copies_after_the_arrival_are_not_waited_for() -> None:
    body = """
    mov.u32 %r14, bar;
    setp.ne.s32 %p1, %r1, 0;
    @!%p1 mbarrier.init.shared.b64 [%r14], 64;
    bar.sync 0;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r14];
    cp.async.cg.shared.global [%r11], [%rd11], 16;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r14], 0; @!%p2 bra WAIT;
    """
    assert (copied(body)[1] == OLD).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("cp.async.cg.shared.global [%r11], [%rd11], 8;", "16 bytes"),
        ("cp.async.ca.shared.global [%r11], [%rd11+4], 8;", "not a multiple of 8"),
        ("cp.async.ca.shared.global [%r11+2], [%rd11], 4, 1;", "not a multiple of 4"),
        ("cp.async.ca.shared.global [%r11], [%rd11], 4, 5;", "5 bytes of source"),
        ("cp.async.cg.shared.global [%r11], [%rd11+2048], 16;", "past the end of 'array 0'"),
        ("cp.async.cg.shared.global [%r11+65536], [%rd11], 16;", "not within the block's"),
        ("cp.async.cg.shared.global.L2::4B [%r11], [%rd11], 16;", "not supported"),
        ("cp.async.wait_group %r1;", "must be a constant"),
    ],
)
def test_misuse(body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        copied(body)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_copy_keeps_its_addresses_though_the_registers_change(seed: int | None) -> None:
    body = """
mul.wide.u32 %rd5, %r1, 16;
add.s64 %rd6, %rd1, %rd5;
add.s64 %rd7, %rd2, %rd5;
mov.u32 %r3, t;
shl.b32 %r4, %r1, 4;
add.u32 %r3, %r3, %r4;
mov.u32 %r9, %r3;
cp.async.cg.shared.global [%r3], [%rd6], 16;
setp.lt.u32 %p1, %r1, 16;
@%p1 add.s64 %rd6, %rd6, 16;
@%p1 add.u32 %r3, %r3, 16;
cp.async.wait_all;
ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r9];
st.global.v4.u32 [%rd7], {%r5, %r6, %r7, %r8};
"""
    source, out = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    run(kernel(body, 2, ".shared .align 16 .b8 t[528];"), [source, out], gpu=Gpu(H200, seed=seed))
    assert out.tolist() == source.tolist()

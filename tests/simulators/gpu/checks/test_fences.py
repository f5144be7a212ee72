"""Releases, acquires and fences order accesses, as far as their scopes reach."""

from __future__ import annotations

import time

import pytest

from tests.simulators.gpu.checks.racing import races
from tests.simulators.gpu.machine.test_control import GRID_BARRIER


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    ("name", "change", "races_expected"),
    [
        ("as it is", ("", ""), False),
        ("a relaxed wait", ("ld.acquire.gpu", "ld.relaxed.gpu"), True),
        ("a relaxed arrival", ("atom.global.acq_rel.gpu", "atom.global.relaxed.gpu"), True),
        ("an arrival for the block alone", ("acq_rel.gpu", "acq_rel.cta"), True),
        ("nobody tells the rest of the block", ("bar.sync 0;", ""), True),
        ("fences instead", ("atom.global.acq_rel.gpu", "fence.acq_rel.gpu;\natom.global.relaxed.gpu"), False),
        ("a fence after the wait", ("MEET:", "fence.acq_rel.gpu;\nMEET:"), False),
    ],
)
def test_a_grid_barrier_orders_a_grid(
    name: str, change: tuple[str, str], races_expected: bool, seed: int | None
) -> None:
    body = GRID_BARRIER
    if name == "a fence after the wait":
        body = body.replace("ld.acquire.gpu", "ld.relaxed.gpu")
    body = body.replace(*change) if change[0] else body
    found = races(body, 8, 1, 8 * 32, grid=8, variables="", seed=seed)
    assert bool(found) == races_expected, name


# Of two partial sums, the block that comes last adds up both: how split work ends without a second launch.
LAST_BLOCK = """
mul.wide.u32 %rd10, %r2, 4;
add.s64 %rd11, %rd1, %rd10;
st.global.u32 [%rd11], 5;
fence.acq_rel.gpu;
atom.global.relaxed.gpu.add.u32 %r5, [%rd2], 1;
mov.u32 %r6, %nctaid.x;
sub.s32 %r6, %r6, 1;
setp.ne.u32 %p1, %r5, %r6;
@%p1 bra OUT;
fence.acq_rel.gpu;
ld.global.u32 %r7, [%rd1];
ld.global.u32 %r8, [%rd1+4];
add.s32 %r7, %r7, %r8;
st.global.u32 [%rd3], %r7;
OUT:
"""


@pytest.mark.parametrize("grid", [2, 300])
def test_the_last_block_may_read_what_all_wrote(grid: int) -> None:
    whole = 200_000  # bytes of shared memory: a block takes a multiprocessor, so 300 of them are not there together
    assert races(LAST_BLOCK, grid, 1, 1, grid=grid, block=1, shared_bytes=whole) == []
    without = LAST_BLOCK.replace("fence.acq_rel.gpu;\natom", "atom")
    assert races(without, grid, 1, 1, grid=grid, block=1, shared_bytes=whole)


# One thread writes and sets a flag; another waits for the flag and reads.
MESSAGE = """
setp.eq.u32 %p1, %r2, 0;
@%p1 bra FIRST;
WAIT:
LOAD %r5, [%rd2];
setp.eq.u32 %p2, %r5, 0;
@%p2 bra WAIT;
AFTER
ld.global.u32 %r6, [%rd1];
bra OUT;
FIRST:
st.global.u32 [%rd1], 7;
BEFORE
STORE [%rd2], 1;
OUT:
"""


@pytest.mark.parametrize(
    ("before", "store", "load", "after", "races_expected"),
    [
        ("fence.acq_rel.sys;", "st.relaxed.sys", "ld.relaxed.gpu", "fence.acq_rel.gpu;", False),
        ("fence.acq_rel.gpu;", "st.relaxed.gpu", "ld.relaxed.sys", "fence.acq_rel.sys;", False),
        ("fence.acq_rel.gpu;", "st.relaxed.gpu", "ld.relaxed.gpu", "fence.acq_rel.cta;", True),
        ("fence.acq_rel.cta;", "st.relaxed.gpu", "ld.relaxed.gpu", "fence.acq_rel.gpu;", True),
        ("", "st.release.sys", "ld.relaxed.gpu", "fence.acq_rel.gpu;", False),
        ("", "st.release.gpu", "ld.acquire.sys", "", False),
        ("", "st.release.cta", "ld.acquire.gpu", "", True),
        ("", "st.release.gpu", "ld.acquire.cta", "", True),
    ],
)
def test_a_release_and_an_acquire_reach_each_other(
    before: str, store: str, load: str, after: str, races_expected: bool
) -> None:
    body = MESSAGE.replace("BEFORE", before).replace("AFTER", after)
    body = body.replace("STORE", f"{store}.global.u32").replace("LOAD", f"{load}.global.u32")
    assert any("array 0" in race.message for race in races(body, 1, 1, grid=2, block=1)) == races_expected


def test_within_a_block_a_wide_release_is_acquired_by_a_narrow_fence() -> None:
    body = """
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bra FIRST;
    WAIT:
    ld.relaxed.cta.shared.u32 %r5, [tile];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra WAIT;
    fence.acq_rel.cta;
    ld.shared.u32 %r6, [tile+4];
    bra OUT;
    FIRST:
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra OUT;
    st.shared.u32 [tile+4], 7;
    st.release.gpu.shared.u32 [tile], 1;
    OUT:
    """
    assert races(body, block=64) == []
    assert races(body.replace("release.gpu", "relaxed.gpu"), block=64)


def test_what_acquires_a_flag_may_clear_it() -> None:
    body = MESSAGE.replace("BEFORE", "").replace("AFTER", "st.global.u32 [%rd2], 0;")
    body = body.replace("STORE", "st.release.gpu.global.u32").replace("LOAD", "ld.acquire.gpu.global.u32")
    assert races(body, 1, 1, grid=2, block=1) == []


# Block 0 writes and releases; block 1 adds to the same flag; block 2 waits for both.
SEQUENCE = """
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r2, 1;
@%p2 bra SECOND;
@%p1 bra FIRST;
WAIT:
ld.acquire.gpu.global.u32 %r5, [%rd2];
setp.lt.u32 %p3, %r5, 2;
@%p3 bra WAIT;
ld.global.u32 %r6, [%rd1];
bra OUT;
FIRST:
st.global.u32 [%rd1], 7;
red.release.gpu.global.add.u32 [%rd2], 1;
bra OUT;
SECOND:
fence.acq_rel.cta;
TURN:
ld.relaxed.gpu.global.u32 %r5, [%rd2];
setp.lt.u32 %p3, %r5, 1;
@%p3 bra TURN;
red.relaxed.gpu.global.add.u32 [%rd2], 1;
OUT:
"""


def test_a_narrow_release_does_not_hide_a_wide_one_before() -> None:
    assert races(SEQUENCE, 1, 1, grid=3, block=1) == []
    assert races(SEQUENCE.replace("red.release.gpu", "red.relaxed.gpu"), 1, 1, grid=3, block=1)


def test_fences_of_many_threads_take_little() -> None:
    """Time and memory do not grow with the square of the threads."""
    start = time.process_time()
    assert races("membar.gl;\n" * 8, 1, grid=48, block=1024) == []
    assert time.process_time() - start < 3  # 0.1; a minute, if each thread's fence were looked at alone

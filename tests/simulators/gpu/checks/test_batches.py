"""Blocks that run one after another, or come beside others, are ordered by nothing that each does for itself."""

from __future__ import annotations

import pytest

from tests.simulators.gpu.checks.racing import races


def test_a_block_that_ends_orders_nothing() -> None:
    body = "st.global.u32 [%rd1], %r2;"
    assert races(body, 1, grid=2, block=1)
    assert races(body, 1, grid=300, block=1, shared_bytes=200_000)  # not all of them are resident together


ONE_THREAD = "setp.ne.u32 %p4, %r1, 0;\nsetp.eq.u32 %p1, %r2, 0;\nsetp.eq.u32 %p2, %r2, OTHER;\n"
MARK = "and.pred %p5, %p1, %p3;\nand.pred %p6, %p2, %p3;\n"
BLOCK_BARRIER = "setp.eq.u32 %p3, %r1, 0;\n" + MARK + "@%p5 st.global.u32 [%rd1], %r2;\nBARRIER\n"
BLOCK_BARRIER += "@%p6 st.global.u32 [%rd1], %r2;"


@pytest.mark.parametrize("other", [15, 16, 17])
@pytest.mark.parametrize(
    ("barrier", "cluster"),
    [("bar.sync 0, 1024;", 1), ("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;", 2)],
)
def test_barriers_order_nothing_between_blocks_that_follow_each_other(barrier: str, cluster: int, other: int) -> None:
    """Blocks of 1,024 threads run 16 at a time: 0 and 16 are in the same place."""
    body = (ONE_THREAD + BLOCK_BARRIER).replace("OTHER", str(other)).replace("BARRIER", barrier)
    assert races(body, 1, grid=32, block=1024, cluster=(cluster, 1, 1))


@pytest.mark.parametrize("other", [15, 16])
def test_a_release_within_a_block_does_not_reach_the_block_that_follows(other: int) -> None:
    body = (
        ONE_THREAD.replace("OTHER", str(other))
        + """
    @%p4 bra OUT;
    @!%p1 bra NEXT;
    st.global.u32 [%rd1], %r2;
    st.release.cta.global.u32 [%rd2], 1;
    NEXT:
    @!%p2 bra OUT;
    ld.acquire.cta.global.u32 %r5, [%rd2];
    st.global.u32 [%rd1], %r2;
    OUT:
    """
    )
    assert any("array 0" in race.message for race in races(body, 1, 1, grid=32, block=1024))


def test_an_mbarrier_orders_nothing_between_blocks_that_follow_each_other() -> None:
    body = (
        ONE_THREAD.replace("OTHER", "16")
        + """
    @%p4 bra OUT;
    mov.u32 %r9, tile;
    mbarrier.init.shared.b64 [%r9], 1;
    @%p1 st.global.u32 [%rd1], %r2;
    mbarrier.arrive.shared.b64 %rd9, [%r9];
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p5, [%r9], 0;
    @!%p5 bra WAIT;
    @%p2 st.global.u32 [%rd1], %r2;
    OUT:
    """
    )
    assert races(body, 1, grid=32, block=1024)


@pytest.mark.parametrize("grid", [8, 32])
def test_a_flag_in_shared_memory_outlives_the_coming_of_more_blocks(grid: int) -> None:
    """16 blocks of 1,024 threads begin together; they wait for the others, which come beside them."""
    body = """
    mov.u32 %r10, %nctaid.x;
    mul.wide.u32 %rd5, %r2, 4;
    add.s64 %rd6, %rd1, %rd5;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra OTHERS;
    st.global.u32 [%rd6], 7;
    st.release.cta.shared.u32 [tile], 1;
    bra OUT;
    OTHERS:
    setp.ne.u32 %p1, %r1, 32;
    @%p1 bra OUT;
    atom.relaxed.gpu.global.add.u32 %r5, [%rd2], 1;
    WAIT:
    ld.relaxed.gpu.global.u32 %r5, [%rd2];
    setp.lt.u32 %p2, %r5, %r10;
    @%p2 bra WAIT;
    ld.acquire.cta.shared.u32 %r5, [tile];
    ld.global.u32 %r6, [%rd6];
    OUT:
    """
    assert races(body, grid, 1, grid=grid, block=1024) == []

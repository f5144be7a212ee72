"""Barriers of a block, of a warp and of a cluster order accesses; what they do not order races."""

from __future__ import annotations

import pytest

from tests.simulators.gpu.checks.racing import races
from tests.simulators.gpu.machine.test_control import REVERSE


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_barrier_orders_a_block(seed: int | None) -> None:
    assert races(REVERSE, 256, block=128, grid=2, seed=seed) == []
    (race, *_) = races(REVERSE.replace("bar.sync 0;", ""), 256, block=128, grid=2, seed=seed)
    assert race.kind == "race" and "ld.shared.u32" in race.message and "st.shared.u32" in race.message
    assert "block (0, 0, 0) thread" in race.message


def test_the_warp_barrier_orders_lanes_and_a_shuffle_does_not() -> None:
    body = """
    mov.u32 %r5, tile;
    shl.b32 %r6, %r1, 2;
    add.s32 %r7, %r5, %r6;
    xor.b32 %r8, %r6, 4;
    add.s32 %r8, %r5, %r8;
    st.shared.u32 [%r7], %r1;
    BARRIER
    ld.shared.u32 %r9, [%r8];
    add.s64 %rd2, %rd1, 0;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r9;
    """
    assert races(body.replace("BARRIER", "bar.warp.sync -1;"), 64, block=64) == []
    assert races(body.replace("BARRIER", "shfl.sync.bfly.b32 %r10, %r1, 1, 31, -1;"), 64, block=64)
    assert races(body.replace("BARRIER", ""), 64, block=64)


# Thread 0 of each block writes to its own shared memory, which the other block of the cluster reads.
CLUSTER = """
mov.u32 %r5, tile;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra ARRIVE;
st.shared.u32 [%r5], %r2;
ARRIVE:
{arrive}
barrier.cluster.wait.aligned;
xor.b32 %r6, %r2, 1;
mapa.shared::cluster.u32 %r7, %r5, %r6;
ld.shared::cluster.u32 %r8, [%r7];
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    ("arrive", "races_expected"),
    [
        ("barrier.cluster.arrive.aligned;", False),
        ("barrier.cluster.arrive.relaxed.aligned;", True),
        ("fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned;", False),
        ("fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed.aligned;", False),
    ],
)
def test_a_relaxed_arrival_at_a_clusters_barrier_releases_what_was_fenced(
    arrive: str, races_expected: bool, seed: int | None
) -> None:
    assert bool(races(CLUSTER.format(arrive=arrive), grid=2, cluster=(2, 1, 1), seed=seed)) == races_expected


def test_a_relaxed_arrival_at_a_cluster_barrier_orders_nothing() -> None:
    body = """
    setp.ne.u32 %p1, %r2, 0;
    @!%p1 st.global.u32 [%rd1], 7;
    barrier.cluster.arrive.ORDER.aligned;
    barrier.cluster.wait.aligned;
    @%p1 ld.global.u32 %r5, [%rd1];
    """
    assert races(body.replace("ORDER", "release"), 1, grid=2, block=32, cluster=(2, 1, 1)) == []
    assert races(body.replace("ORDER", "relaxed"), 1, grid=2, block=32, cluster=(2, 1, 1))


# Warps 0, 1 and 2 read; a named barrier orders some of them before warp 3, which writes.
READERS = """
shr.u32 %r5, %r1, 5;
setp.eq.u32 %p1, %r5, 3;
@%p1 bra WRITER;
ld.shared.u32 %r6, [tile];
FORGOTTEN
bar.arrive 1, COUNT;
bra OUT;
WRITER:
bar.sync 1, COUNT;
st.shared.u32 [tile], 1;
OUT:
"""


@pytest.mark.parametrize("warp", [None, 0, 1, 2])
def test_a_reader_between_others_is_remembered(warp: int | None) -> None:
    forgotten = "" if warp is None else f"setp.eq.u32 %p2, %r5, {warp};\n@%p2 bra OUT;"
    body = READERS.replace("FORGOTTEN", forgotten).replace("COUNT", "128" if warp is None else "96")
    assert bool(races(body, block=128)) == (warp is not None)


def test_a_barrier_orders_nobody_who_came_to_it_at_another_time() -> None:
    # Warp 0 arrives for warp 1; warp 2 then for warp 3, which reads what warp 0 wrote.
    body = """
    shr.u32 %r5, %r1, 5;
    setp.eq.u32 %p1, %r5, WRITER;
    @%p1 st.shared.u32 [tile], 7;
    setp.ge.u32 %p2, %r5, 2;
    @%p2 bra LATER;
    and.b32 %r6, %r5, 1;
    setp.eq.u32 %p3, %r6, 0;
    @%p3 bar.arrive 1, 64;
    @!%p3 bar.sync 1, 64;
    st.release.cta.shared.u32 [tile+4], 1;
    bra OUT;
    LATER:
    ld.relaxed.cta.shared.u32 %r7, [tile+4];
    setp.eq.u32 %p4, %r7, 0;
    @%p4 bra LATER;
    and.b32 %r6, %r5, 1;
    setp.eq.u32 %p3, %r6, 0;
    @%p3 bar.arrive 1, 64;
    @!%p3 bar.sync 1, 64;
    @!%p3 ld.shared.u32 %r8, [tile];
    OUT:
    """
    found = [race for race in races(body.replace("WRITER", "0"), block=128) if "st.shared.u32 [tile], 7" in str(race)]
    assert any("ld.shared.u32 %r8" in race.message for race in found)
    assert not any("ld.shared.u32 %r8" in race.message for race in races(body.replace("WRITER", "2"), block=128))

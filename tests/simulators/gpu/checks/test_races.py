"""Races are reported, each with both instructions; what is ordered is not."""

from __future__ import annotations

import time

import numpy as np
import pytest

from simulators.gpu.checks.races import Races
from simulators.gpu.chip import H200
from simulators.gpu.gpu import Gpu
from simulators.gpu.watch import Finding
from tests.simulators.gpu.launching import kernel, run
from tests.simulators.gpu.machine.test_control import GRID_BARRIER, REVERSE

TILE = ".shared .align 16 .b8 tile[1024];"


def races(body: str, *sizes: int, variables: str = TILE, seed: int | None = None, **launch: object) -> list[Finding]:
    """What is found when the body runs over zeroed arrays of u32."""
    arrays = [np.zeros(size, np.uint32) for size in sizes]
    gpu = Gpu(H200, seed=seed, watchers=[Races])
    return list(run(kernel(body, len(sizes), variables), arrays, gpu=gpu, **launch).findings)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_barrier_orders_a_block(seed: int | None) -> None:
    assert races(REVERSE, 256, block=128, grid=2, seed=seed) == []
    (race, *_) = races(REVERSE.replace("bar.sync 0;", ""), 256, block=128, grid=2, seed=seed)
    assert race.kind == "race" and "ld.shared.u32" in race.message and "st.shared.u32" in race.message
    assert "block (0, 0, 0) thread" in race.message


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


def test_a_block_that_ends_orders_nothing() -> None:
    body = "st.global.u32 [%rd1], %r2;"
    assert races(body, 1, grid=2, block=1)
    assert races(body, 1, grid=300, block=1, shared_bytes=200_000)  # not all of them are resident together


def test_atomics_do_not_race_with_each_other_but_with_plain_stores() -> None:
    atomic = "red.global.add.u32 [%rd1], 1;"
    assert races(atomic, 1, grid=4, block=64) == []
    assert races("setp.eq.u32 %p1, %r2, 0;\n@%p1 st.global.u32 [%rd1], 5;\n" + atomic, 1, grid=4, block=1)
    assert races(atomic.replace("global", "cta.global").replace("red.", "red.relaxed."), 1, grid=4, block=1)


def test_lanes_that_write_different_values_to_one_place_race() -> None:
    assert races("st.shared.u32 [tile], %r1;", block=32)
    assert races("st.shared.u32 [tile], 5;", block=32) == []


def test_neighbours_of_one_word_do_not_race() -> None:
    body = "mul.wide.u32 %rd3, %r1, 2;\nadd.s64 %rd2, %rd1, %rd3;\ncvt.u16.u32 %rs1, %r1;\nst.global.b16 [%rd2], %rs1;"
    assert races(body, 32, block=64) == []


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


def test_a_race_is_told_with_the_source_line() -> None:
    body = ".loc 1 42 0\nst.shared.u32 [tile], %r1;\n.loc 1 43 0\nld.shared.u32 %r5, [tile];"
    arrays: list[np.ndarray] = []
    text = kernel(body, 0, TILE).replace(".address_size 64", '.address_size 64\n.file 1 "norm.py"')
    findings = run(text, arrays, block=64, watchers=[Races]).findings
    assert any(finding.place.file == "norm.py" and finding.place.source_line == 43 for finding in findings)
    assert "norm.py:42" in str(findings[-1]) or "norm.py:42" in str(findings[0])


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


@pytest.mark.parametrize("writer", [0, 31, 100, 255])
def test_a_reader_that_writes_races_with_the_other_readers(writer: int) -> None:
    body = f"ld.shared.u32 %r5, [tile];\nsetp.eq.u32 %p1, %r1, {writer};\n@%p1 st.shared.u32 [tile], 5;"
    assert races(body, block=256)


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


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_the_same_value_may_be_written_at_once_or_in_turn(seed: int | None) -> None:
    body = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra JOIN;\nmov.b32 %r5, 0;\nJOIN:\nst.shared.u32 [tile], VALUE;"
    assert races(body.replace("VALUE", "1"), block=64, seed=seed) == []
    assert races(body.replace("VALUE", "%r1"), block=64, seed=seed)


def test_places_are_as_small_as_the_smallest_access() -> None:
    barriers = """
    mov.u32 %r5, tile;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r5], 1;
    @!%p1 mbarrier.init.shared.b64 [%r5+PLACE], 1;
    """
    assert races(barriers.replace("PLACE", "8"), block=2) == []
    assert races(barriers.replace("PLACE", "0"), block=2)
    halves = """
    mov.b16 %rs1, 0;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 red.relaxed.cta.global.add.noftz.bf16 [%rd1], %rs1;
    @!%p1 red.relaxed.cta.global.add.noftz.bf16 [%rd1+PLACE], %rs1;
    """
    assert races(halves.replace("PLACE", "2"), 2, grid=2, block=1) == []
    assert races(halves.replace("PLACE", "0"), 2, grid=2, block=1)
    # A wide write is remembered in all its parts.
    wide = """
    setp.eq.u32 %p1, %r1, 0;
    @!%p1 bra SECOND;
    st.shared.v4.u32 [tile], {%r1, %r1, %r1, %r1};
    bra OUT;
    SECOND:
    add.u32 %r5, %r1, 1;
    st.shared.b8 [tile+PLACE], %r5;
    OUT:
    """
    assert races(wide.replace("PLACE", "9"), block=2)
    assert races(wide.replace("PLACE", "16"), block=2) == []


def test_instructions_of_one_line_are_told_apart() -> None:
    body = (
        "st.shared.u32 [tile+8], 3; ld.shared.u32 %r5, [tile]; setp.eq.u32 %p1, %r1, 1; @%p1 st.shared.u32 [tile], 1;"
    )
    (race,) = races(body)
    assert "does ld.shared.u32 %r5" in race.message


def test_fences_of_many_threads_take_little() -> None:
    """Time and memory do not grow with the square of the threads."""
    start = time.process_time()
    assert races("membar.gl;\n" * 8, 1, grid=48, block=1024) == []
    assert time.process_time() - start < 3  # 0.1; a minute, if each thread's fence were looked at alone

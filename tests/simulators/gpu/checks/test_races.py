"""Races are reported, each with both instructions; what is ordered is not."""

from __future__ import annotations

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

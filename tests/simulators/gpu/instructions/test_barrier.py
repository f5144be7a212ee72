"""Barriers of a block count warps; a warp's barrier is one, wherever its threads stand."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from simulators.gpu.machine.waiting import Deadlock
from tests.simulators.gpu.launching import kernel, run

MARK = "mul.wide.u32 %rd20, %r1, 4; add.s64 %rd21, %rd1, %rd20; st.global.u32 [%rd21], 1;"
SEEDS = [None, 0, 1, 2]


def marked(body: str, block: int, seed: int | None = None) -> int:
    """How many threads have come to the end."""
    out = np.zeros(block, np.uint32)
    run(kernel(body + MARK, 1), [out], gpu=Gpu(H200, seed=seed), block=block)
    return int(out.sum())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_counts_for_32_however_many_of_its_threads_there_are(seed: int | None) -> None:
    assert marked("bar.sync 1, 64;\n", 48, seed) == 48
    assert marked("setp.eq.u32 %p1, %r1, 5;\n@%p1 ret;\nbar.sync 1, 64;\n", 64, seed) == 63


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_of_warps_as_they_come(seed: int | None) -> None:
    late = "".join(f"setp.gt.u32 %p1, %r1, {32 * warp + 31};\n@%p1 bra ON{warp};\nON{warp}:\n" for warp in range(3))
    assert marked(late + "bar.sync 1, 64;\n", 128, seed) == 128


@pytest.mark.parametrize("seed", SEEDS)
def test_a_third_warp_waits_for_a_fourth(seed: int | None) -> None:
    with pytest.raises(Deadlock, match=r"32 threads .* have come to barrier 1, which waits for 64"):
        marked("bar.sync 1, 64;\n", 96, seed)


HALVES = """
and.b32 %r5, %r1, 31;
setp.lt.u32 %p1, %r5, 16;
@%p1 bra LOW;
barrier.sync {}, 32;
bra END;
LOW:
barrier.sync 1, 32;
END:
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_has_come_when_all_its_threads_have(seed: int | None) -> None:
    assert marked(HALVES.format(1), 64, seed) == 64
    with pytest.raises(Deadlock, match="barrier 2"):
        marked(HALVES.format(2), 64, seed)


def test_what_is_no_barrier_or_has_two_counts() -> None:
    with pytest.raises(SimulatorError, match="there are 16"):
        marked("bar.sync 16;\n", 32)
    with pytest.raises(SimulatorError, match="names 96 threads for barrier 1"):
        marked("setp.lt.u32 %p1, %r1, 32;\n@%p1 bar.sync 1, 64;\n@!%p1 bar.sync 1, 96;\n", 96)
    # All of the block is a number too.
    assert marked("setp.lt.u32 %p1, %r1, 32;\n@%p1 bar.sync 1;\n@!%p1 bar.sync 1, 96;\n", 96) == 96


def test_who_does_not_wait_says_for_how_many() -> None:
    assert marked("bar.arrive 1, 32;\n", 32) == 32
    with pytest.raises(UnsupportedInstruction, match="how many threads"):
        marked("bar.arrive 1;\n", 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_of_a_padded_block_in_a_loop(seed: int | None) -> None:
    body = """
mov.b32 %r5, 0;
LOOP:
bar.sync 0;
add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, 5;
@%p1 bra LOOP;
"""
    assert marked(body, 100, seed) == 100


TWO_ARMS = """
setp.lt.u32 %p1, %r1, 16;
@%p1 bra LOW;
bar.warp.sync {};
bra END;
LOW:
bar.warp.sync -1;
END:
bar.sync 0;
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_meets_from_two_places(seed: int | None) -> None:
    assert marked(TWO_ARMS.format("-1"), 32, seed) == 32
    with pytest.raises(Deadlock, match=r"thread \(16, 0, 0\).* which do not come .*bar.warp.sync -1"):
        marked(TWO_ARMS.format("0xFFFF0000"), 32, seed)


# The halves of a warp meet from two places, with other registers.
COLLECTIVES = """
setp.lt.u32 %p1, %r1, 16;
add.u32 %r7, %r1, 100;
setp.eq.u32 %p2, %r1, 3;
setp.eq.u32 %p3, %r1, 30;
and.b32 %r9, %r1, 7;
@%p1 bra LOW;
{high}
bra END;
LOW:
{low}
END:
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (
            "shfl.sync.bfly.b32 %r6, %r1, 16, 31, -1;",
            "shfl.sync.bfly.b32 %r8|%p4, %r7, 16, 31, -1; mov.b32 %r6, %r8;",
            [*range(116, 132), *range(16)],
        ),
        ("vote.sync.ballot.b32 %r6, %p2, -1;", "vote.sync.ballot.b32 %r6, %p3, -1;", [1 << 3 | 1 << 30] * 32),
        (
            "match.any.sync.b32 %r6, %r9, -1;",
            "match.any.sync.b32 %r6, 5, -1;",
            [0x101 << i | 0xFFFF0000 * (i == 5) for i in range(8)] * 2 + [0x2020 | 0xFFFF0000] * 16,
        ),
        ("redux.sync.add.u32 %r6, %r1, -1;", "redux.sync.add.u32 %r6, %r7, -1;", [31 * 16 + 1600] * 32),
    ],
)
def test_a_collective_from_two_places(low: str, high: str, wanted: list[int], seed: int | None) -> None:
    out = np.zeros(32, np.uint32)
    body = COLLECTIVES.format(low=low, high=high) + MARK.replace("], 1;", "], %r6;")
    run(kernel(body, 1), [out], gpu=Gpu(H200, seed=seed))
    assert out.tolist() == wanted


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("shfl.sync.idx.b32 %r6, %r1, 16, 31, -1;", "shfl.sync.bfly.b32 %r6, %r1, 16, 31, -1;"),
        ("vote.sync.any.pred %p5, %p2, -1;", "vote.sync.any.pred %p5, %p2, 0xFFFF0000; bar.sync 0;"),
    ],
)
def test_other_qualifiers_or_another_mask_do_not_meet(low: str, high: str) -> None:
    body = COLLECTIVES.format(low=low, high=high)
    with pytest.raises(Deadlock, match="which do not come"):
        marked(body, 32)


def test_a_shuffle_from_who_does_not_take_part_is_of_no_use() -> None:
    out = np.zeros(48, np.uint32)
    body = "mov.b32 %r6, 1;\nshfl.sync.down.b32 %r6, %r6, 16, 31, -1;\n" + MARK.replace("], 1;", "], %r6;")
    run(kernel(body, 1), [out], block=48)
    assert set(out[:32].tolist()) == {1} and out[32:].min() > 1

"""mbarrier objects: phases, counts, transactions, and what is said of misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError
from simulators.gpu.gpu import Gpu
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.waiting import Deadlock
from simulators.gpu.watch import Key, Watcher
from tests.simulators.gpu.launching import kernel, run

BARS = ".shared .align 8 .b64 bars[4]; .local .align 8 .b64 spill;"
INDEX = """
mov.u32 %r3, %ntid.x;
mad.lo.s32 %r4, %r2, %r3, %r1;
mul.wide.u32 %rd10, %r4, 4;
add.s64 %rd11, %rd1, %rd10;
mov.u32 %r8, bars;
"""


def initialized(count: int | str) -> str:
    """By thread 0; %p1 is true for the others."""
    return f"""
{INDEX}
setp.ne.s32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r8], {count};
READY:
bar.sync 0;
"""


# Each thread writes to its place of a ring of two stages and reads its neighbour's, eight times, with one barrier.
RING = """
mov.u32 %r9, ring;
mov.b32 %r5, 0;
mov.b32 %r7, 0;
LOOP:
and.b32 %r6, %r5, 1;
shl.b32 %r10, %r6, 10;
add.s32 %r11, %r9, %r10;
shl.b32 %r12, %r1, 2;
add.s32 %r12, %r11, %r12;
mad.lo.s32 %r13, %r5, 1000, %r1;
st.shared.u32 [%r12], %r13;
{arrive}
{wait}
add.s32 %r14, %r1, 1;
rem.u32 %r14, %r14, %r3;
shl.b32 %r14, %r14, 2;
add.s32 %r14, %r11, %r14;
ld.shared.u32 %r15, [%r14];
add.s32 %r7, %r7, %r15;
add.s32 %r5, %r5, 1;
setp.lt.u32 %p3, %r5, 8;
@%p3 bra LOOP;
st.global.u32 [%rd11], %r7;
"""
BY_STATE = (
    "mbarrier.arrive.shared.b64 %rd9, [%r8];",
    "WAIT: mbarrier.test_wait.shared.b64 %p2, [%r8], %rd9; @!%p2 bra WAIT;",
)
BY_PARITY = (
    "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r8], 1;",
    "WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r8], %r6, 1000; @!%p2 bra WAIT;",
)


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(("arrive", "wait"), [BY_STATE, BY_PARITY])
@pytest.mark.parametrize("block", [1, 50])
def test_phases(block: int, arrive: str, wait: str, seed: int | None) -> None:
    text = kernel(
        initialized(block) + RING.format(arrive=arrive, wait=wait), 1, BARS + ".shared .align 8 .b8 ring[2048];"
    )
    out = np.zeros(3 * block, np.uint32)
    run(text, [out], grid=3, block=block, gpu=Gpu(H200, seed=seed))
    neighbour = (np.arange(block) + 1) % block
    assert out.reshape(3, block).tolist() == [(28000 + 8 * neighbour).tolist()] * 3


def words(body: str, count: int, block: int = 32, arrays: int = 1, **launch: Any) -> NDArray[np.uint32]:
    """%r15 of each thread at the end."""
    out = np.zeros(block, np.uint32)
    run(kernel(initialized(count) + body + "st.global.u32 [%rd11], %r15;", arrays, BARS), [out], block=block, **launch)
    return out


def test_pending_count_is_what_was_left_before() -> None:
    counts = words("mbarrier.arrive.shared.b64 %rd9, [%r8], 2; mbarrier.pending_count.b64 %r15, %rd9;", 100)
    assert counts.tolist() == list(range(100, 36, -2))


def test_a_phase_that_ends_within_one_instruction() -> None:
    counts = words("mbarrier.arrive.shared.b64 %rd9, [%r8]; mbarrier.pending_count.b64 %r15, %rd9;", 5)
    assert counts.tolist() == [5 - i % 5 for i in range(32)]


def test_those_who_drop_are_not_expected_again() -> None:
    body = """
    setp.lt.u32 %p3, %r1, 30;
    @%p3 mbarrier.arrive_drop.shared.b64 _, [%r8];
    @!%p3 mbarrier.arrive.shared.b64 _, [%r8];
    bar.sync 0;
    mbarrier.arrive.noComplete.shared.b64 %rd9, [%r8+8], 1;
    @!%p3 mbarrier.arrive.shared.b64 %rd9, [%r8];
    mbarrier.pending_count.b64 %r15, %rd9;
    """
    body = "@!%p1 mbarrier.init.shared.b64 [%r8+8], 33;\nbar.sync 0;" + body
    assert words(body, 32).tolist() == [33 - i for i in range(30)] + [2, 1]


def test_transactions() -> None:
    body = """
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 96;
    bar.sync 0;
    mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r8], 4;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r8], 1;
    WAIT: mbarrier.test_wait.parity.shared.b64 %p2, [%r8], 0; @!%p2 bra WAIT;
    selp.u32 %r15, 1, 0, %p2;
    """
    assert words(body, 1).tolist() == [1] * 32


def test_missing_transactions_are_a_deadlock_that_says_how_many() -> None:
    body = """
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 4096;
    bar.sync 0;
    @!%p1 mbarrier.complete_tx.shared.b64 [%r8], 4000;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0; @!%p2 bra WAIT;
    """
    with pytest.raises(Deadlock, match=r"32 threads .* wait at the mbarrier at shared address 0x400 .* lacks 96 bytes"):
        words(body, 1)


def test_missing_arrivals_are_a_deadlock_that_says_how_many() -> None:
    body = "mbarrier.arrive.shared.b64 %rd9, [%r8];\nW: mbarrier.try_wait.shared.b64 %p2, [%r8], %rd9; @!%p2 bra W;"
    with pytest.raises(Deadlock, match="lacks 3 of 35 arrivals"):
        words(body, 35)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mbarrier.arrive.shared.b64 _, [%r8+8];", "is not initialised"),
        ("mbarrier.arrive.shared.b64 _, [%r8+4];", "not a multiple of 8"),
        ("mbarrier.arrive.shared.b64 _, [%r8], 2;", "2 times at an mbarrier whose phase waits for 1 arrivals"),
        ("mbarrier.init.shared.b64 [%r8], 0;", "0 arrivals; it must be 1"),
        ("mbarrier.expect_tx.shared.b64 [%r8], 1048576;", "the limit is 1048575"),
        ("mbarrier.arrive.noComplete.shared.b64 %rd9, [%r8], 1;", "noComplete rules out"),
        ("st.shared.u32 [%r8], 5; mbarrier.arrive.shared.b64 _, [%r8];", "has been overwritten"),
        ("mbarrier.inval.shared.b64 [%r8]; mbarrier.arrive.shared.b64 _, [%r8];", "is not initialised"),
        ("mbarrier.expect_tx.shared.b64 [%r8], 8; mbarrier.init.shared.b64 [%r8], 1;", "in the middle of a phase"),
        ("mov.b64 %rd9, 5; mbarrier.test_wait.shared.b64 %p2, [%r8], %rd9;", "no mbarrier.arrive has returned"),
        ("cvta.local.u64 %rd8, spill; mbarrier.arrive.b64 _, [%rd8];", "not in local memory"),
        ("mbarrier.arrive.sys.shared.b64 _, [%r8];", "modifier .sys is unknown"),
        ("mbarrier.arrive.shared::cluster.b64 %rd9, [%r8];", "has no result"),
    ],
)
def test_misuse(body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        words(body, 1, block=1)


@pytest.mark.parametrize("wait", ["test_wait", "try_wait"])
@pytest.mark.parametrize("phase", [0, 1, 2])
def test_of_a_parity_bit_0_counts(phase: int, wait: str) -> None:
    """As an H200 answered. Kernels that count how often they have gone around a ring rely on it."""
    parities = [0, 1, 2, 3, 4, 5, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF]
    answers = []
    for parity in parities:
        body = phase * "mbarrier.arrive.shared.b64 _, [%r8];"
        body += f"mbarrier.{wait}.parity.shared.b64 %p2, [%r8], {parity}; selp.u32 %r15, 1, 0, %p2;"
        answers += words(body, 1, block=1).tolist()
    assert answers == [(parity + phase) % 2 for parity in parities]


def test_an_object_may_be_made_again() -> None:
    body = """
    mbarrier.arrive.shared.b64 _, [%r8];
    mbarrier.inval.shared.b64 [%r8];
    mbarrier.init.shared.b64 [%r8], 7;
    mbarrier.arrive.shared.b64 %rd9, [%r8];
    mbarrier.pending_count.b64 %r15, %rd9;
    """
    assert words(body, 1, block=1).tolist() == [7]


# Blocks of a cluster arrive at rank 0's object, which waits for all.
CLUSTER = """
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
mov.u32 %r9, 0;
mapa.shared::cluster.u32 %r10, %r8, %r9;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];
mov.u32 %r11, %cluster_ctarank;
setp.ne.s32 %p4, %r11, 0;
@%p4 bra DONE;
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra WAIT;
DONE:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
st.global.u32 [%rd11], 1;
"""


@pytest.mark.parametrize("seed", [None, 0])
def test_arrivals_from_other_blocks(seed: int | None) -> None:
    out = np.zeros(8 * 32, np.uint32)
    run(kernel(initialized(128) + CLUSTER, 1, BARS), [out], grid=8, gpu=Gpu(H200, seed=seed), cluster=(4, 1, 1))
    assert out.all()
    with pytest.raises(Deadlock, match="lacks 1 of 129 arrivals"):
        run(kernel(initialized(129) + CLUSTER, 1, BARS), [out], grid=8, cluster=(4, 1, 1))


class Edges(Watcher):
    """What is released and acquired."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int], Key, bool]] = []

    def arrived(self, machine: Machine, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        self.seen.append(("arrived", threads.tolist(), key, is_relaxed))

    def waited(self, machine: Machine, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        self.seen.append(("waited", threads.tolist(), key, is_relaxed))


def test_those_who_watch_are_told_of_each_phase() -> None:
    body = """
    mbarrier.arrive.shared.b64 %rd9, [%r8];
    mbarrier.test_wait.shared.b64 %p2, [%r8], %rd9;
    mbarrier.arrive.relaxed.cta.shared.b64 %rd9, [%r8];
    mbarrier.test_wait.shared.b64 %p2, [%r8], %rd9;
    """
    edges = Edges()
    words(body, 4, block=4, watchers=[lambda: edges])
    seen = [one for one in edges.seen if one[2][0] == "mbarrier"]
    (first, second), phases = seen[0][2][:2], [int(str(key[2])) for _, _, key, _ in seen]
    assert (first, second) == ("mbarrier", 0) and phases == [phases[0]] * 2 + [phases[0] + 1] * 2
    assert [(name, threads, is_relaxed) for name, threads, _, is_relaxed in seen] == [
        ("arrived", [0, 1, 2, 3], False),
        ("waited", [0, 1, 2, 3], False),
        ("arrived", [0, 1, 2, 3], True),
        ("waited", [0, 1, 2, 3], False),
    ]

"""Stores that become visible late: what is wrong fails under some seed, and what is right is so under every one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.gpu import Gpu
from tests.simulators.gpu.launching import kernel, run

SHARED = ".shared .align 16 .b8 t[16];"


def outcomes(body: str, sizes: list[int], seeds: int, *, block: int = 1, **launch: Any) -> set[tuple[int, ...]]:
    """What the last array holds, for so many seeds, and for the quick schedule."""
    found = set()
    for seed in (None, *range(seeds)):
        arrays = [np.zeros(size, np.uint32) for size in sizes]
        run(kernel(body, len(sizes)), arrays, gpu=Gpu(H200, seed=seed), block=block, **launch)
        found.add(tuple(arrays[-1].tolist()))
    return found


@pytest.mark.parametrize("store", ["st.release.cta", "st.relaxed.gpu", "st"])
def test_a_thread_keeps_its_own_order(store: str) -> None:
    body = f"st.global.u32 [%rd1], 1;\n{store}.global.u32 [%rd1], 2;"
    assert outcomes(body, [1], 10) == {(2,)}


def test_a_store_keeps_its_value_though_the_register_changes() -> None:
    body = """
setp.eq.u32 %p1, %r1, 1;
mul.wide.u32 %rd5, %r1, 4;
add.s64 %rd6, %rd1, %rd5;
add.u32 %r5, %r1, 1;
st.global.u32 [%rd6], %r5;
@%p1 mov.b32 %r5, 9;
"""
    assert outcomes(body, [32], 10, block=32) == {tuple(range(1, 33))}


@pytest.mark.parametrize("update", ["red.relaxed.gpu.global.add.u32 [%rd1], 1", "atom.global.inc.u32 %r5, [%rd1], 9"])
def test_an_atomic_comes_after_the_same_blocks_stores(update: str) -> None:
    assert outcomes(f"st.global.u32 [%rd1], 1;\n{update};", [1], 10) == {(2,)}


# Block 0 writes data and sets a flag, for which block 1 waits.
PASS = """
setp.eq.u32 %p1, %r2, 0;
@%p1 bra PRODUCE;
WAIT:
ld.{acquire}.gpu.global.u32 %r5, [%rd2];
setp.eq.u32 %p2, %r5, 0;
@%p2 bra WAIT;
ld.global.u32 %r6, [%rd1];
st.global.u32 [%rd3], %r6;
bra END;
PRODUCE:
st.global.u32 [%rd1], 7;
{flag};
END:
"""


@pytest.mark.parametrize("flag", ["st.{}.gpu.global.u32 [%rd2], 1", "red.{}.gpu.global.add.u32 [%rd2], 1"])
def test_message_passing(flag: str) -> None:
    wrong = PASS.format(acquire="relaxed", flag=flag.format("relaxed"))
    assert outcomes(wrong, [1, 1, 1], 20, grid=2) == {(0,), (7,)}
    for right in (
        PASS.format(acquire="acquire", flag=flag.format("release")),
        PASS.format(acquire="acquire", flag="fence.acq_rel.gpu;\n" + flag.format("relaxed")),
    ):
        assert outcomes(right, [1, 1, 1], 20, grid=2) == {(7,)}


# Each block stores one, and counts itself; the last one sums what all stored.
SUM = """
mul.wide.u32 %rd5, %r2, 4;
add.s64 %rd6, %rd1, %rd5;
st.global.u32 [%rd6], 1;
{fence}
atom.relaxed.gpu.global.add.u32 %r5, [%rd2], 1;
setp.ne.u32 %p1, %r5, 7;
@%p1 bra END;
{fence}
mov.b32 %r6, 0;
mov.b32 %r8, 0;
mov.u64 %rd7, %rd1;
LOOP:
ld.global.cg.u32 %r7, [%rd7];
add.u32 %r8, %r8, %r7;
add.s64 %rd7, %rd7, 4;
add.u32 %r6, %r6, 1;
setp.lt.u32 %p2, %r6, 8;
@%p2 bra LOOP;
st.global.u32 [%rd3], %r8;
END:
"""


def test_a_sum_by_the_last_block_needs_its_fence() -> None:
    assert outcomes(SUM.format(fence="membar.gl;"), [8, 1, 1], 20, grid=8) == {(8,)}
    assert len(outcomes(SUM.format(fence=""), [8, 1, 1], 20, grid=8)) > 1


def test_each_may_miss_the_others_store() -> None:
    """Store buffering: without a fence both blocks may read what was there before."""
    body = """
mul.wide.u32 %rd5, %r2, 4;
sub.s64 %rd6, 4, %rd5;
add.s64 %rd7, %rd1, %rd5;
add.s64 %rd8, %rd1, %rd6;
st.relaxed.gpu.global.u32 [%rd7], 1;
FENCE
LOAD:
ld.relaxed.gpu.global.u32 %r5, [%rd8];
add.s64 %rd9, %rd2, %rd5;
st.global.u32 [%rd9], %r5;
"""
    assert (0, 0) in outcomes(body.replace("FENCE", ""), [2, 2], 20, grid=2)
    assert (0, 0) not in outcomes(body.replace("FENCE", "fence.sc.gpu;"), [2, 2], 40, grid=2)


# Block 0 of a cluster writes to global memory, and block 1 reads it after the cluster's barrier.
CLUSTER = """
setp.ne.u32 %p1, %r2, 0;
@!%p1 st.global.u32 [%rd1], 7;
barrier.cluster.arrive{}.aligned;
barrier.cluster.wait.aligned;
@!%p1 bra END;
ld.global.u32 %r5, [%rd1];
st.global.u32 [%rd2], %r5;
END:
"""


def test_a_clusters_barrier_lets_stores_out() -> None:
    cluster: dict[str, Any] = {"grid": 2, "cluster": (2, 1, 1)}
    assert outcomes(CLUSTER.format(""), [1, 1], 10, **cluster) == {(7,)}
    assert outcomes(CLUSTER.format(".relaxed"), [1, 1], 10, **cluster) == {(0,), (7,)}


def test_a_copy_comes_after_the_same_blocks_stores() -> None:
    body = """
mov.u32 %r5, t;
st.shared.u32 [%r5], 2;
st.global.u32 [%rd1], 1;
fence.proxy.async;
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r5], 16;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
"""
    for seed in range(10):
        raw = np.zeros(64, np.uint8)
        start = -raw.ctypes.data % 16
        out = raw[start : start + 16].view(np.uint32)
        run(kernel(body, 1, SHARED), [out], gpu=Gpu(H200, seed=seed), block=1)
        assert out[0] == 2

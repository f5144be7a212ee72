"""Threads part and meet again; every thread does what it would do alone."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.gpu import Gpu
from simulators.gpu.limits import LaunchError
from simulators.gpu.machine.waiting import Deadlock
from tests.simulators.gpu.launching import kernel, run

INDEX = """
mov.u32 %r3, %ntid.x;
mad.lo.s32 %r4, %r2, %r3, %r1;
mul.wide.u32 %rd10, %r4, 4;
add.s64 %rd11, %rd1, %rd10;
"""

COLLATZ = (
    INDEX
    + """
mov.b32 %r5, 0;
add.s32 %r6, %r4, 1;
LOOP:
setp.eq.s32 %p1, %r6, 1;
@%p1 bra DONE;
and.b32 %r7, %r6, 1;
setp.eq.s32 %p2, %r7, 0;
@%p2 bra EVEN;
mad.lo.s32 %r6, %r6, 3, 1;
bra NEXT;
EVEN:
shr.u32 %r6, %r6, 1;
NEXT:
add.s32 %r5, %r5, 1;
bra LOOP;
DONE:
st.global.u32 [%rd11], %r5;
"""
)


def collatz(number: int) -> int:
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


@pytest.mark.parametrize(
    ("grid", "block", "seed"),
    [(1, 1, None), (3, 33, None), (20, 128, None), (300, 256, None), (1, 1, 0), (3, 33, 0), (3, 33, 1)],
)
def test_divergent_loops(grid: int, block: int, seed: int | None) -> None:
    out = np.zeros(grid * block, np.uint32)
    gpu = Gpu(H200, seed=seed)
    run(kernel(COLLATZ, 1), [out], grid=grid, block=block, gpu=gpu)
    assert out.tolist() == [collatz(i + 1) for i in range(grid * block)]


REVERSE = (
    INDEX
    + """
mov.u32 %r8, tile;
shl.b32 %r9, %r1, 2;
add.s32 %r10, %r8, %r9;
ld.global.u32 %r5, [%rd11];
st.shared.u32 [%r10], %r5;
bar.sync 0;
sub.s32 %r11, %r3, %r1;
shl.b32 %r11, %r11, 2;
add.s32 %r12, %r8, %r11;
ld.shared.u32 %r5, [%r12+-4];
st.global.u32 [%rd11], %r5;
"""
)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("block", [1, 32, 50, 256])
def test_blocks_share_memory(block: int, seed: int | None) -> None:
    values = np.arange(7 * block, dtype=np.uint32)
    expected = values.reshape(7, block)[:, ::-1].ravel().copy()
    gpu = Gpu(H200, seed=seed)
    run(kernel(REVERSE, 1, ".shared .align 4 .b8 tile[1024];"), [values], grid=7, block=block, gpu=gpu)
    assert values.tolist() == expected.tolist()


BUTTERFLY = (
    INDEX
    + "ld.global.u32 %r5, [%rd11];"
    + "".join(f"shfl.sync.bfly.b32 %r6, %r5, {step}, 31, -1; add.s32 %r5, %r5, %r6;\n" for step in (16, 8, 4, 2, 1))
    + "st.global.u32 [%rd11], %r5;"
)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_butterflies(seed: int | None) -> None:
    values = np.arange(5 * 96, dtype=np.uint32)
    expected = values.reshape(-1, 32).sum(1, dtype=np.uint32).repeat(32)
    gpu = Gpu(H200, seed=seed)
    run(kernel(BUTTERFLY, 1), [values], grid=5, block=96, gpu=gpu)
    assert values.tolist() == expected.tolist()


# Each block adds one to a counter and waits until all have; then every block sees the sum of what all wrote.
GRID_BARRIER = """
mul.wide.u32 %rd10, %r2, 4;
add.s64 %rd11, %rd1, %rd10;
setp.ne.s32 %p1, %r1, 0;
@%p1 bra MEET;
add.s32 %r5, %r2, 100;
st.global.u32 [%rd11], %r5;
mov.u32 %r6, %nctaid.x;
atom.global.acq_rel.gpu.add.u32 %r7, [%rd2], 1;
WAIT:
ld.acquire.gpu.global.u32 %r7, [%rd2];
setp.lt.u32 %p2, %r7, %r6;
@%p2 bra WAIT;
MEET:
bar.sync 0;
sub.s32 %r8, %r6, 1;
mov.u32 %r6, %nctaid.x;
sub.s32 %r8, %r6, %r2;
mul.wide.u32 %rd12, %r8, 4;
add.s64 %rd13, %rd1, %rd12;
ld.global.u32 %r9, [%rd13+-4];
mul.wide.u32 %rd14, %r1, 4;
mul.wide.u32 %rd15, %r2, 128;
add.s64 %rd16, %rd3, %rd14;
add.s64 %rd16, %rd16, %rd15;
st.global.u32 [%rd16], %r9;
"""


@pytest.mark.parametrize(
    ("grid", "seed"), [(1, None), (2, None), (132, None), (3000, None), (1, 0), (2, 0), (132, 0), (132, 1)]
)
def test_grid_barrier(grid: int, seed: int | None) -> None:
    written, counter, out = (np.zeros(size, np.uint32) for size in (grid, 1, grid * 32))
    gpu = Gpu(H200, seed=seed)
    run(kernel(GRID_BARRIER, 3), [written, counter, out], grid=grid, gpu=gpu)
    assert out.reshape(grid, 32).tolist() == (100 + np.arange(grid)[::-1, None].repeat(32, 1)).tolist()


def test_a_grid_barrier_of_more_blocks_than_fit_is_a_deadlock() -> None:
    grid = 132 + 1  # of blocks that take a whole multiprocessor's shared memory
    written, counter, out = (np.zeros(size, np.uint32) for size in (grid, 1, grid * 32))
    with pytest.raises(Deadlock) as error:
        run(kernel(GRID_BARRIER, 3), [written, counter, out], grid=grid, shared_bytes=200_000)
    assert "poll 'array 1' (byte 0, which holds 132)" in str(error.value)
    assert "1 blocks have not begun" in str(error.value)
    with pytest.raises(LaunchError, match="holds 132 at once"):
        run(kernel(GRID_BARRIER, 3), [written, counter, out], grid=grid, shared_bytes=200_000, is_cooperative=True)


def test_a_barrier_that_some_threads_pass_by_is_a_deadlock() -> None:
    text = kernel("setp.lt.u32 %p1, %r1, 40; @%p1 bra OUT;\nbar.sync 0;\nOUT:\nbar.sync 1;", 0)
    with pytest.raises(Deadlock, match="barrier") as error:
        run(text, [], block=64)
    assert "thread (40, 0, 0)" in str(error.value) or "thread (0, 0, 0)" in str(error.value)

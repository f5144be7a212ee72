"""Loops that wait, that only seem to, and that never end."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError
from simulators.gpu.gpu import Gpu
from simulators.gpu.launch import Launch
from simulators.gpu.machine.waiting import Deadlock
from simulators.gpu.ptx.parser import parse
from tests.simulators.gpu.launching import kernel, run

TURNS = 2000  # more than a wait is given before it is called one
SHARED = ".shared .align 4 .b8 t[4];"


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    "look",
    [
        "ld.relaxed.sys.global.u32 %r7, [%rd1];",
        "ld.volatile.global.u32 %r7, [%rd1];",
        "ld.volatile.shared.u32 %r7, [t];",
        "red.global.max.u32 [%rd1], 0;",
        "atom.global.max.u32 %r7, [%rd1], 0;",
    ],
)
def test_a_long_loop_that_changes_no_memory_is_no_deadlock(look: str, seed: int | None) -> None:
    body = f"""
st.shared.u32 [t], 0;
mov.b32 %r5, 0;
LOOP:
{look}
add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, {TURNS};
@%p1 bra LOOP;
st.global.u32 [%rd2], %r5;
"""
    arrays = [np.zeros(1, np.uint32) for _ in range(2)]
    run(kernel(body, 2, SHARED), arrays, gpu=Gpu(H200, seed=seed), block=1)
    assert arrays[1] == TURNS


# Block 0 waits for block 1, whose code comes after it.
SPIN = """
setp.eq.u32 %p1, %r2, 1;
@%p1 bra PRODUCE;
WAIT:
ld{order}.global.u32 %r5, [%rd1];
{back}
bra END;
PRODUCE:
{produce}
END:
"""
BACK = "setp.eq.u32 %p2, %r5, 0;\n@%p2 bra WAIT;"
BY_INDEX = "targets: .branchtargets WAIT, DONE;\nbrx.idx %r5, targets;\nDONE:"


@pytest.mark.parametrize("back", [BACK, BY_INDEX], ids=["bra", "brx.idx"])
@pytest.mark.parametrize("order", ["", ".relaxed.gpu"])
@pytest.mark.parametrize("seed", [None, 0])
def test_who_waits_lets_others_run(order: str, back: str, seed: int | None) -> None:
    flag = np.zeros(1, np.uint32)
    body = SPIN.format(order=order, back=back, produce="st.global.u32 [%rd1], 1;")
    run(kernel(body, 1), [flag], gpu=Gpu(H200, seed=seed), grid=2, block=1)
    assert flag == 1


@pytest.mark.parametrize("back", [BACK, BY_INDEX], ids=["bra", "brx.idx"])
@pytest.mark.parametrize("order", ["", ".relaxed.gpu"])
@pytest.mark.parametrize("seed", [None, 0])
def test_a_wait_for_nothing_is_a_deadlock(order: str, back: str, seed: int | None) -> None:
    body = SPIN.format(order=order, back=back, produce="")
    with pytest.raises(Deadlock, match="poll"):
        run(kernel(body, 1), [np.zeros(1, np.uint32)], gpu=Gpu(H200, seed=seed), grid=2, block=1)


def test_a_wait_that_stores_what_is_there_is_a_deadlock() -> None:
    body = "WAIT:\nst.global.u32 [%rd1], 1;\nld.relaxed.gpu.global.u32 %r5, [%rd2];\n" + BACK
    with pytest.raises(Deadlock):
        run(kernel(body, 2), [np.zeros(1, np.uint32) for _ in range(2)])


def test_a_loop_out_of_which_nothing_leads() -> None:
    with pytest.raises(SimulatorError, match=r"nothing leads out of this loop: bra LOOP"):
        run(kernel("LOOP:\nadd.u32 %r5, %r5, 1;\nbra LOOP;", 0), [])


@pytest.mark.parametrize("look", ["", "ld.relaxed.gpu.global.u32 %r7, [%rd1];"])
def test_the_limit_of_instructions(look: str) -> None:
    array = np.zeros(1, np.uint32)
    gpu = Gpu(H200, max_instructions=20_000)
    gpu.memory.add_array(array, "array")
    text = kernel(f"LOOP:\nadd.u32 %r5, %r5, 1;\n{look}\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra LOOP;", 1)
    launch = Launch("k", (1, 1, 1), (32, 1, 1), struct.pack("<Q", array.ctypes.data))
    with pytest.raises(SimulatorError, match=r"not ended after \d+ instructions(.|\n)*add.u32 %r5, %r5, 1"):
        gpu.launch(parse(text), launch)


def test_a_guard_holds_for_a_trap_and_for_a_branch_by_index() -> None:
    body = """
setp.eq.u32 %p1, %r1, 99;
setp.lt.u32 %p2, %r1, 8;
@%p1 trap;
mov.b32 %r6, 1;
targets: .branchtargets END, OTHER;
and.b32 %r5, %r1, 1;
@%p2 brx.idx %r5, targets;
mov.b32 %r6, 2;
bra END;
OTHER:
mov.b32 %r6, 3;
END:
mul.wide.u32 %rd5, %r1, 4;
add.s64 %rd6, %rd1, %rd5;
st.global.u32 [%rd6], %r6;
"""
    out = np.zeros(32, np.uint32)
    run(kernel(body, 1), [out])
    assert out.tolist() == [1, 3] * 4 + [2] * 24
    with pytest.raises(SimulatorError, match=r"thread .7, 0, 0. has reached a trap"):
        run(kernel("setp.eq.u32 %p1, %r1, 7;\n@%p1 trap;", 0), [])

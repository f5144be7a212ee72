"""Groups that part, end and wait: nobody does an instruction twice, and nobody waits for who has ended."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from tests.simulators.gpu.launching import kernel, run

SEEDS = [None, 0, 1, 2, 3]
OUT = "mul.wide.u32 %rd20, %r1, 4;\nadd.s64 %rd21, %rd1, %rd20;\n"


def stored(body: str, block: int, seed: int | None) -> list[int]:
    """What %r9 is at the end, of each thread that comes there."""
    out = np.zeros(block, np.uint32)
    run(kernel(OUT + body + "st.global.u32 [%rd21], %r9;", 1), [out], gpu=Gpu(H200, seed=seed), block=block)
    return out.tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("meeting", ["shfl.sync.idx.b32 %r9, %r1, 1, 31, -1;", "vote.sync.ballot.b32 %r9, 1, -1;"])
def test_who_waits_while_another_ends_executes_once(meeting: str, seed: int | None) -> None:
    body = f"""
setp.eq.u32 %p1, %r1, 0;
@%p1 bra LAST;
{meeting}
bra END;
LAST:
mov.u32 %r4, 1;
exit;
END:
"""
    report = run(kernel(body, 1), [np.zeros(1, np.uint32)], gpu=Gpu(H200, seed=seed))
    # Three instructions before the body and two in it by all; then two by one, and three by the others.
    assert report.thread_instructions == 5 * 32 + 2 + 3 * 31


@pytest.mark.parametrize("seed", SEEDS)
def test_who_leaves_loops_early_and_who_returns_within(seed: int | None) -> None:
    body = """
mov.u32 %r9, 0;
rem.u32 %r5, %r1, 7;
LOOP:
add.u32 %r9, %r9, 1;
setp.eq.u32 %p1, %r9, %r5;
@%p1 bra.uni STORE;
st.global.u32 [%rd21], %r9;
setp.gt.u32 %p2, %r9, %r1;
@%p2 ret;
bra LOOP;
STORE:
add.u32 %r9, %r9, 100;
"""
    wanted = [100 + t % 7 if t % 7 and t % 7 <= t + 1 else t + 1 for t in range(64)]
    assert stored(body, 64, seed) == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_a_branch_by_index_falls_through(seed: int | None) -> None:
    body = """
and.b32 %r5, %r1, 3;
mov.u32 %r9, 0;
WAYS: .branchtargets A, B, C, D;
brx.idx %r5, WAYS;
A: add.u32 %r9, %r9, 1;
B: add.u32 %r9, %r9, 10;
bra END;
C: add.u32 %r9, %r9, 100;
D: add.u32 %r9, %r9, 1000;
END:
"""
    assert stored(body, 64, seed) == [(11, 10, 1100, 1000)[t & 3] for t in range(64)]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_executed_may_be_anywhere(seed: int | None) -> None:
    body = """
setp.eq.u32 %p1, %r1, 99;
mov.u64 %rd9, 3;
mov.u32 %r8, 3;
mov.u32 %r9, 1;
@%p1 ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd9];
@%p1 st.shared.u32 [%r8], %r3;
@%p1 atom.global.add.u32 %r4, [%rd9], 1;
@%p1 red.global.add.f32 [%rd9], 1.0;
@%p1 cp.async.ca.shared.global [%r8], [%rd9], 4;
@%p1 trap;
cp.async.wait_all;
"""
    assert stored(body, 64, seed) == [1] * 64


@pytest.mark.parametrize("name", ["%carry", "%carry_flag", "carry"])
def test_the_carry_flag_is_no_register_that_a_kernel_may_name(name: str) -> None:
    body = f"""
.reg .b32 {name};
mov.u32 {name}, 5;
mov.u32 %r3, -1;
add.cc.u32 %r4, %r3, 1;
addc.u32 %r9, %r3, {name};
"""
    assert stored(body, 1, None) == [5]


def test_calls_are_refused_as_calls() -> None:
    body = """
{
.param .b64 format;
.param .b32 printed;
st.param.b64 [format], %rd1;
call.uni (printed), vprintf, (format);
}
"""
    text = kernel(body, 1).replace(".visible", ".extern .func (.param .b32 r) vprintf (.param .b64 f);\n.visible")
    with pytest.raises(UnsupportedInstruction, match="functions are not simulated"):
        run(text, [np.zeros(1, np.uint32)])


@pytest.mark.parametrize("width", ["32", "64"])
def test_a_misaligned_parameter_is_told(width: str) -> None:
    with pytest.raises(Exception, match=r"is not a multiple|is not within"):
        run(kernel(f"ld.param.u{width} %rd5, [p0+{8 if width == '32' else 4}];", 1), [np.zeros(1, np.uint32)])


def test_a_cache_policy_is_a_hint() -> None:
    body = """
createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;
ld.global.L2::cache_hint.u32 %r5, [%rd1], %rd5;
add.u32 %r5, %r5, 1;
st.global.L2::cache_hint.u32 [%rd1], %r5, %rd5;
"""
    out = np.array([4], np.uint32)
    run(kernel(body, 1), [out], block=1)
    assert out.tolist() == [5]

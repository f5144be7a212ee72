"""Accesses outside memory, misaligned ones, and reads of what nobody wrote: each is told with who, where and which."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.checks.uninitialised import UninitialisedReads
from simulators.gpu.errors import SimulatorError
from tests.simulators.gpu.launching import kernel, run

AT = "mul.wide.u32 %rd10, %r1, 4;\nadd.s64 %rd11, %rd1, %rd10;\n"


@pytest.mark.parametrize(
    ("body", "variables", "message"),
    [
        (AT + "ld.global.u32 %r5, [%rd11];", "", r"thread \(8, 0, 0\): 4 bytes at .* past the end of 'array 0'"),
        (AT + "ld.global.u32 %r5, [%rd11+-4];", "", r"thread \(0, 0, 0\): 4 bytes at 0x"),
        (AT + "st.global.u32 [%rd11+4], %r1;", "", r"thread \(7, 0, 0\)"),
        (AT + "ld.u32 %r5, [%rd11];", "", r"thread \(8, 0, 0\)"),
        ("ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd1+4];", "", "is not a multiple of 16 bytes"),
        ("ld.global.b16 %rs1, [%rd1+3];", "", "is not a multiple of 2 bytes"),
        ("ld.shared.u32 %r5, [tile+16];", ".shared .b8 tile[16];", "16 bytes of shared memory"),
        ("mov.b32 %r5, 0;\nld.shared.u32 %r6, [%r5];", ".shared .b8 tile[16];", "16 bytes of shared memory"),
        ("ld.local.u32 %r5, [depot+8];", ".local .b8 depot[8];", "8 bytes of local memory"),
        ("ld.param.u32 %r5, [p0+8];", "", "8 bytes of parameters"),
        ("mov.b64 %rd2, 0;\nst.global.u32 [%rd2], %r1;", "", "0x0, which is before every allocation"),
        ("atom.global.add.u32 %r5, [%rd1+64], 1;", "", "past the end of 'array 0'"),
    ],
)
def test_accesses_outside_memory_end_a_launch(body: str, variables: str, message: str) -> None:
    # The array that is known to the GPU is a part of a larger one: what lies around it is nobody's.
    whole = np.zeros(96, np.uint32)
    start = -(whole.ctypes.data // 4) % 4 + 32
    with pytest.raises(SimulatorError, match=message) as error:
        run(kernel(body, 1, variables), [whole[start : start + 8]])
    assert error.value.place is not None and error.value.place.line > 1
    assert (whole[start + 8 :] == 0).all() and (whole[:start] == 0).all()


def test_the_last_byte_of_an_allocation_may_be_read() -> None:
    out = np.arange(8, dtype=np.uint32)
    run(
        kernel(AT + "ld.global.u32 %r5, [%rd11];\nadd.s32 %r5, %r5, 1;\nst.global.u32 [%rd11], %r5;", 1), [out], block=8
    )
    assert out.tolist() == list(range(1, 9))


def test_reads_of_what_nobody_wrote_are_found() -> None:
    body = AT + "ld.global.u32 %r5, [%rd11];\nmul.wide.u32 %rd12, %r1, 4;\nadd.s64 %rd13, %rd2, %rd12;\n"
    body += "st.global.u32 [%rd13], %r5;\nld.global.u32 %r6, [%rd13];"
    arrays = [np.zeros(32, np.uint32), np.zeros(32, np.uint32)]
    assert run(kernel(body, 2), arrays, watchers=[UninitialisedReads], uninitialized=[1]).findings == ()
    (finding,) = run(kernel(body, 2), arrays, watchers=[UninitialisedReads], uninitialized=[0]).findings
    assert finding.kind == "uninitialised read" and "byte 0 of 'array 0'" in finding.message
    assert "31 other threads" in finding.message


def test_shared_memory_holds_nothing_at_first() -> None:
    body = "shl.b32 %r5, %r1, 2;\nmov.u32 %r6, tile;\nadd.s32 %r6, %r6, %r5;\n"
    body += "STORE\nbar.sync 0;\nld.shared.u32 %r7, [%r6];"
    variables = ".shared .align 4 .b8 tile[128];"
    some = body.replace("STORE", "setp.lt.u32 %p1, %r1, 31;\n@%p1 st.shared.u32 [%r6], %r1;")
    every = body.replace("STORE", "st.shared.u32 [%r6], %r1;")
    assert run(kernel(every, 0, variables), [], watchers=[UninitialisedReads]).findings == ()
    (finding,) = run(kernel(some, 0, variables), [], watchers=[UninitialisedReads]).findings
    assert "thread (31, 0, 0)" in finding.message


def test_each_block_has_shared_memory_of_its_own() -> None:
    body = "setp.eq.u32 %p1, %r2, 0;\n@%p1 st.shared.u32 [tile], 1;\nbar.sync 0;\nld.shared.u32 %r7, [tile];"
    (finding,) = run(
        kernel(body, 0, ".shared .b8 tile[4];"), [], grid=2, block=1, watchers=[UninitialisedReads]
    ).findings
    assert "block (1, 0, 0)" in finding.message


def test_two_reads_of_one_line_are_two_findings() -> None:
    body = "ld.shared.u32 %r5, [tile]; ld.shared.u32 %r6, [tile+4];"
    findings = run(kernel(body, 0, ".shared .b8 tile[16];"), [], watchers=[UninitialisedReads]).findings
    assert ["%r5" in str(findings[0]), "%r6" in str(findings[1])] == [True, True]

"""shfl.sync against its pseudocode, of whole warps and of parts of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.gpu.launching import kernel, run


def taken(mode: str, lane: int, amount: int, clamp: int) -> tuple[int, bool]:
    """The lane, and whether it is valid. Source: PTX ISA, "shfl.sync"."""
    b, c, segment = amount & 31, clamp & 31, clamp >> 8 & 31
    most, least = (lane & segment) | (c & ~segment), lane & segment
    other = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": least | (b & ~segment)}[mode]
    is_valid = other >= most if mode == "up" else other <= most
    return (other if is_valid else lane), is_valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@settings(max_examples=40, deadline=None)
@given(
    amount=st.integers(0, 40),
    width=st.sampled_from([1, 2, 4, 8, 16, 32]),
    lanes=st.integers(1, 32),
    in_registers=st.booleans(),
)
def test_each_takes_what_the_manual_says(mode: str, amount: int, width: int, lanes: int, in_registers: bool) -> None:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    out, mask = np.zeros((64, 2), np.uint32), (1 << lanes) - 1
    operands = "%r6, %r7" if in_registers else f"{amount}, {clamp}"
    body = f"""
mul.wide.u32 %rd5, %r1, 8;
add.s64 %rd6, %rd1, %rd5;
and.b32 %r5, %r1, 31;
setp.ge.u32 %p1, %r5, {lanes};
@%p1 bra END;
mov.u32 %r6, {amount};
mov.u32 %r7, {clamp};
shfl.sync.{mode}.b32 %r8|%p2, %r1, {operands}, {mask};
selp.u32 %r9, 1, 0, %p2;
st.global.v2.u32 [%rd6], {{%r8, %r9}};
END:
"""
    run(kernel(body, 1), [out], block=64)
    for thread, (found, is_valid) in enumerate(out.tolist()):
        lane = thread % 32
        if lane < lanes:
            other, valid = taken(mode, lane, amount, clamp)
            assert bool(is_valid) is valid
            if other < lanes:  # what an absent lane gives is left open
                assert found == thread - lane + other

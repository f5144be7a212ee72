"""Instructions, bytes, sectors, bank conflicts and divergence are counted as they are on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulators.gpu.checks.counters import Counters, Counts
from tests.simulators.gpu.launching import kernel, run


def counts(body: str, *sizes: int, variables: str = "", **launch: Any) -> Counts:
    arrays = [np.zeros(size, np.uint32) for size in sizes]
    (watcher,) = run(kernel(body, len(sizes), variables), arrays, watchers=[Counters], **launch).watchers
    assert isinstance(watcher, Counters)
    return watcher.counts


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (8, 32), (16, 32), (0, 1)])
def test_sectors_follow_the_stride(stride: int, sectors: int) -> None:
    body = f"mul.wide.u32 %rd10, %r1, {4 * stride};\nadd.s64 %rd11, %rd1, %rd10;\nld.global.u32 %r5, [%rd11];"
    # The array begins where it may, so a request can touch a sector more.
    traffic = counts(body, 32 * 16 + 1).traffic["global", "read"]
    assert traffic.requests == 1 and traffic.bytes == 128
    assert sectors <= traffic.sectors <= sectors + (1 if stride in (1, 2) else 0)


@pytest.mark.parametrize(
    ("address", "access", "turns", "least"),
    [
        ("shl.b32 %r5, %r1, 2;", "ld.shared.u32 %r7, [%r6];", 1, 1),
        ("shl.b32 %r5, %r1, 3;", "ld.shared.u32 %r7, [%r6];", 2, 1),
        ("shl.b32 %r5, %r1, 7;", "ld.shared.u32 %r7, [%r6];", 32, 1),
        ("mul.lo.s32 %r5, %r1, 132;", "ld.shared.u32 %r7, [%r6];", 1, 1),
        ("mov.b32 %r5, 0;", "ld.shared.u32 %r7, [%r6];", 1, 1),  # one word for all
        ("shl.b32 %r5, %r1, 4;", "ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r6];", 4, 4),
        ("shl.b32 %r5, %r1, 3;", "ld.shared.v2.u32 {%r7, %r8}, [%r6];", 2, 2),
        ("shl.b32 %r5, %r1, 5;", "ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r6];", 8, 4),
    ],
)
def test_banks(address: str, access: str, turns: int, least: int) -> None:
    body = f"{address}\nmov.u32 %r6, tile;\nadd.s32 %r6, %r6, %r5;\n{access}"
    traffic = counts(body, variables=".shared .align 128 .b8 tile[8192];").traffic["shared", "read"]
    assert (traffic.turns, traffic.least_turns) == (turns, least)
    assert traffic.conflicts == turns - least


def test_divergence_is_counted_by_warp() -> None:
    body = "LIMIT\nsetp.lt.u32 %p1, %r1, %r5;\n@%p1 bra OUT;\nadd.s32 %r6, %r1, 1;\nOUT:"
    assert counts(body.replace("LIMIT", "mov.b32 %r5, 40;"), block=128).divergent_branches == 1
    assert counts(body.replace("LIMIT", "mov.b32 %r5, 64;"), block=128).divergent_branches == 0


def test_instructions_are_counted_by_thread_and_by_warp() -> None:
    found = counts("add.s32 %r5, %r1, 1;\nadd.s32 %r5, %r5, 1;\nmul.lo.s32 %r6, %r5, %r5;", block=40, grid=3)
    assert found.thread_instructions["add"] == 2 * 120 and found.thread_instructions["mul"] == 120
    assert found.warp_instructions["add"] == 2 * 6


def test_instructions_of_one_line_have_traffic_of_their_own() -> None:
    body = "ld.shared.u32 %r5, [tile]; st.shared.v4.u32 [tile], {%r5, %r5, %r5, %r5};"
    found = counts(body, variables=".shared .align 16 .b8 tile[16];").by_instruction
    assert {one.opcode: of.bytes for one, of in found.items()} == {"ld": 128, "st": 512}

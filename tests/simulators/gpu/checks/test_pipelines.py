"""Kernels of several stages, as matrix products and attention have them: silent as they should be, and told of whatever
is left out. All data are zeros, so the result is right with each fault."""

from __future__ import annotations

import pytest

from simulators.gpu.watch import Finding
from tests.simulators.gpu.checks.racing import only_race, races

SEEDS = [None, *range(5)]

# Three stages, each filled by all threads with cp.async, and read by all: tile %r3 is read while two others come.
COPIES = """
mov.u32 %r9, tile;
shl.b32 %r10, %r1, 4;
add.s32 %r11, %r9, %r10;
xor.b32 %r12, %r10, 512;
add.s32 %r12, %r9, %r12;
mul.wide.u32 %rd10, %r1, 16;
add.s64 %rd11, %rd1, %rd10;
cp.async.cg.shared.global [%r11], [%rd11], 16;
cp.async.commit_group;
cp.async.cg.shared.global [%r11+1024], [%rd11+1024], 16;
cp.async.commit_group;
mov.b32 %r3, 0;
mov.b32 %r6, 0;
LOOP:
rem.u32 %r13, %r3, 3;
shl.b32 %r13, %r13, 10;
add.s32 %r14, %r12, %r13;
add.s32 %r15, %r3, 2;
rem.u32 %r16, %r15, 3;
shl.b32 %r16, %r16, 10;
add.s32 %r16, %r11, %r16;
setp.lt.u32 %p2, %r15, 8;
mul.wide.u32 %rd12, %r15, 1024;
add.s64 %rd12, %rd11, %rd12;
cp.async.wait_group 1;
bar.sync 0;
@%p2 cp.async.cg.shared.global [%r16], [%rd12], 16;
cp.async.commit_group;
ld.shared.u32 %r5, [%r14];
add.s32 %r6, %r6, %r5;
add.s32 %r3, %r3, 1;
setp.lt.u32 %p3, %r3, 8;
@%p3 bra LOOP;
cvt.u64.u32 %rd13, %r10;
add.s64 %rd13, %rd2, %rd13;
st.global.u32 [%rd13], %r6;
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("as it is", "", ""),
        ("no wait", "cp.async.wait_group 1;", ""),
        ("a wait for a group too few", "cp.async.wait_group 1;", "cp.async.wait_group 2;"),
        ("no barrier", "bar.sync 0;", ""),
        ("a barrier before the wait", "cp.async.wait_group 1;\nbar.sync 0;", "bar.sync 0;\ncp.async.wait_group 1;"),
        ("the stage that is read is filled", "add.s32 %r15, %r3, 2;", "add.s32 %r15, %r3, 3;"),
        (
            "no group where nothing is left to copy",
            "cp.async.commit_group;\nld.shared",
            "@%p2 cp.async.commit_group;\nld.shared",
        ),
        (
            "filled before the barrier",
            "cp.async.wait_group 1;\nbar.sync 0;\n@%p2 cp.async.cg.shared.global [%r16], [%rd12], 16;",
            "@%p2 cp.async.cg.shared.global [%r16], [%rd12], 16;\ncp.async.wait_group 1;\nbar.sync 0;",
        ),
    ],
)
def test_stages_that_are_copied_by_all(name: str, old: str, new: str, seed: int | None) -> None:
    assert old in COPIES
    body = COPIES.replace(old, new) if old else COPIES
    found = races(body, 2048, 256, variables=".shared .align 128 .b8 tile[3072];", seed=seed, block=64)
    if name == "as it is":
        assert found == []
    else:
        assert "cp.async" in only_race(found).message


# Two stages, filled by a thread of warp 0 with bulk copies, and read by warps 1 and 2.
BULK = """
mov.u32 %r9, tile;
mov.u32 %r8, full;
mov.u32 %r7, empty;
setp.ne.u32 %p1, %r1, 0;
@!%p1 mbarrier.init.shared.b64 [%r8], 1;
@!%p1 mbarrier.init.shared.b64 [%r8+8], 1;
@!%p1 mbarrier.init.shared.b64 [%r7], 64;
@!%p1 mbarrier.init.shared.b64 [%r7+8], 64;
INIT
bar.sync 0;
setp.lt.u32 %p2, %r1, 32;
and.pred %p2, %p1, %p2;
@%p2 bra OUT;
mov.b32 %r3, 0;
LOOP:
and.b32 %r4, %r3, 1;
shl.b32 %r13, %r4, 10;
shl.b32 %r4, %r4, 3;
add.s32 %r14, %r8, %r4;
add.s32 %r15, %r7, %r4;
xor.b32 %r19, %r13, 1024;
add.s32 %r19, %r9, %r19;
add.s32 %r16, %r9, %r13;
shr.u32 %r17, %r3, 1;
and.b32 %r17, %r17, 1;
setp.ge.u32 %p2, %r1, 32;
@%p2 bra CONSUME;
xor.b32 %r17, %r17, 1;
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p3, [%r15], %r17;
@!%p3 bra AGAIN;
mbarrier.arrive.expect_tx.shared.b64 _, [%r14], 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r16], [%rd1], 1024, [%r14];
bra NEXT;
CONSUME:
mbarrier.try_wait.parity.shared.b64 %p3, [%r14], %r17;
@!%p3 bra CONSUME;
shl.b32 %r18, %r1, 4;
sub.u32 %r18, %r18, 512;
add.s32 %r18, %r18, %r16;
ld.shared.u32 %r5, [%r18];
EMPTY
NEXT:
add.s32 %r3, %r3, 1;
setp.lt.u32 %p4, %r3, 8;
@%p4 bra LOOP;
OUT:
"""
INIT, EMPTY = "fence.mbarrier_init.release.cluster;", "mbarrier.arrive.shared.b64 _, [%r15];"
BARRIERS = ".shared .align 128 .b8 tile[2048]; .shared .align 8 .b64 full[2]; .shared .align 8 .b64 empty[2];"


def bulk(
    init: str = INIT, empty: str = EMPTY, change: tuple[str, str] = ("", ""), seed: int | None = None
) -> list[Finding]:
    body = BULK.replace("INIT", init).replace("EMPTY", empty)
    assert change[0] in body
    body = body.replace(*change) if change[0] else body
    return races(body, 2048, variables=BARRIERS, seed=seed, block=96)


ORDERED = "bar.sync 1, 64; "
ONE_ARRIVAL = ORDERED + "setp.ne.u32 %p5, %r1, 40; @!%p5 mbarrier.arrive.shared.b64 _, [%r15], 64;"
RELAXED = "mbarrier.arrive.relaxed.cta.shared.b64 _, [%r15];"
FENCED = "fence.acq_rel.cta; " + RELAXED
READ = "ld.shared.u32 %r5, [%r18];\n"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("init", "empty"),
    [(INIT, EMPTY), ("fence.proxy.async;", EMPTY), (INIT, ONE_ARRIVAL), (INIT, FENCED)],
)
def test_stages_that_are_filled_by_bulk_copies(init: str, empty: str, seed: int | None) -> None:
    assert bulk(init, empty, seed=seed) == []


@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize(
    ("name", "empty", "change"),
    [
        ("filled when the other stage is empty", EMPTY, ("bytes [%r16],", "bytes [%r19],")),
        ("read when the other stage is full", EMPTY, ("%r18, %r16;", "%r18, %r19;")),
        ("read before it is full", EMPTY, ("CONSUME:\n", "CONSUME:\nld.shared.u32 %r5, [%r16];\n")),
        ("given away before it is read", EMPTY, (READ + EMPTY, EMPTY + READ)),
        ("a relaxed arrival without a fence", RELAXED, ("", "")),
        ("one arrives for all, who may not be done", ONE_ARRIVAL.removeprefix(ORDERED), ("", "")),
    ],
)
def test_what_such_stages_lack_is_told(name: str, empty: str, change: tuple[str, str], seed: int | None) -> None:
    assert "cp.async.bulk" in only_race(bulk(empty=empty, change=change, seed=seed)).message

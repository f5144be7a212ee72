"""Copies that go on by themselves: what is read, or written, between the instruction that asks and a wait, races."""

from __future__ import annotations

import pytest

from simulators.gpu.watch import Finding
from tests.simulators.gpu.checks.racing import only_race, races

SEEDS = [None, *range(8)]
SHARED = ".shared .align 128 .b8 tile[4096]; .shared .align 8 .b64 bar;"
# Of each thread 16 bytes of %rd1, at %rd11, and a place at %r11; that of a thread of the next warp is at %r12.
PLACES = """
mul.wide.u32 %rd10, %r1, 16;
add.s64 %rd11, %rd1, %rd10;
mov.u32 %r9, tile;
mov.u32 %r8, bar;
shl.b32 %r10, %r1, 4;
add.s32 %r11, %r9, %r10;
xor.b32 %r12, %r10, 512;
add.s32 %r12, %r9, %r12;
setp.ne.u32 %p1, %r1, 0;
"""
COPY = "cp.async.cg.shared.global [%r11], [%rd11], 16;"
WAIT = "cp.async.commit_group; cp.async.wait_group 0;"


def found(body: str, seed: int | None = None, **launch: object) -> list[Finding]:
    return races(PLACES + body, 256, 256, variables=SHARED, seed=seed, block=64, **launch)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "body",
    [
        f"{COPY} {WAIT} bar.sync 0; ld.shared.u32 %r5, [%r12];",
        f"{COPY} cp.async.wait_all; bar.sync 0; ld.shared.u32 %r5, [%r12];",
        f"{COPY} {WAIT} ld.shared.u32 %r5, [%r11];",
        f"st.shared.u32 [%r11], %r1; {COPY} {WAIT} st.shared.u32 [%r11], %r1;",
        f"{COPY} {WAIT} st.global.u32 [%rd11], %r1;",
        f"ld.shared.u32 %r5, [%r12]; bar.sync 0; {COPY} {WAIT}",
        # The older of two groups.
        f"{COPY} cp.async.commit_group; cp.async.cg.shared.global [%r11+2048], [%rd11], 16; cp.async.commit_group;"
        "cp.async.wait_group 1; bar.sync 0; ld.shared.u32 %r5, [%r12];",
    ],
)
def test_what_is_waited_for_is_ordered(body: str, seed: int | None) -> None:
    assert found(body, seed) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        (f"{COPY} ld.shared.u32 %r5, [%r11];", "cp.async.cg", "ld.shared"),
        (f"{COPY} cp.async.commit_group; bar.sync 0; ld.shared.u32 %r5, [%r12];", "cp.async.cg", "ld.shared"),
        (f"{COPY} cp.async.wait_group 0; ld.shared.u32 %r5, [%r11];", "cp.async.cg", "ld.shared"),
        (f"{COPY} {WAIT} ld.shared.u32 %r5, [%r12];", "cp.async.cg", "ld.shared"),
        (f"{COPY} st.shared.u32 [%r11], %r1; {WAIT}", "cp.async.cg", "st.shared"),
        (f"{COPY} st.global.u32 [%rd11], %r1; {WAIT}", "cp.async.cg", "st.global"),
        (f"ld.shared.u32 %r5, [%r12]; {COPY} {WAIT}", "cp.async.cg", "ld.shared"),
        (f"{COPY} cp.async.cg.shared.global [%r11], [%rd2], 16; {WAIT}", "[%rd11]", "[%rd2]"),
        (
            f"{COPY} cp.async.commit_group; cp.async.cg.shared.global [%r11+2048], [%rd11], 16; cp.async.commit_group;"
            "cp.async.wait_group 1; bar.sync 0; ld.shared.u32 %r5, [%r12+2048];",
            "cp.async.cg",
            "ld.shared",
        ),
    ],
)
def test_what_is_not_waited_for_races(body: str, first: str, second: str, seed: int | None) -> None:
    """All that is copied is zeros, and so is what was there: the result is right."""
    race = only_race(found(body, seed))
    assert first in race.message and second in race.message and race.message.count("thread (") == 2


def test_who_asked_for_a_copy_is_named() -> None:
    body = f"setp.eq.u32 %p2, %r1, 33; @%p2 {COPY} bar.sync 0; setp.eq.u32 %p3, %r1, 1; @%p3 ld.shared.u32 %r5, [%r12];"
    race = only_race(found(body))
    assert "thread (33, 0, 0) does" in race.message and "thread (1, 0, 0) does" in race.message


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("increment", [".noinc", ""])
def test_an_mbarrier_that_is_told_of_copies(increment: str, seed: int | None) -> None:
    body = f"""
    @!%p1 mbarrier.init.shared.b64 [%r8], {64 if increment else 1};
    bar.sync 0;
    {COPY}
    cp.async.mbarrier.arrive{increment}.shared.b64 [%r8];
    LATE
    {"" if increment else "bar.sync 0; @!%p1 mbarrier.arrive.shared.b64 _, [%r8];"}
    AGAIN:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0;
    @!%p2 bra AGAIN;
    ld.shared.u32 %r5, [%r12+PLACE];
    """
    late = "cp.async.cg.shared.global [%r11+1024], [%rd11], 16;"
    assert found(body.replace("LATE", late).replace("+PLACE", ""), seed) == []
    assert only_race(found(body.replace("LATE", late).replace("PLACE", "1024"), seed))
    waits = "mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0;\n    @!%p2 bra AGAIN;"
    assert only_race(found(body.replace("LATE", "").replace("+PLACE", "").replace(waits, ""), seed))


LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK = f"""
@!%p1 mbarrier.init.shared.b64 [%r8], 1;
fence.mbarrier_init.release.cluster;
BEFORE
bar.sync 0;
@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 1024;
@!%p1 {LOAD} [%r9], [%rd1], 1024, [%r8];
BETWEEN
AGAIN:
mbarrier.try_wait.parity.ORDER.shared.b64 %p2, [%r8], 0;
@!%p2 bra AGAIN;
AFTER
"""


def bulk(before: str = "", between: str = "", after: str = "", order: str = "acquire.cta") -> str:
    body = BULK.replace("BEFORE", before).replace("BETWEEN", between).replace("AFTER", after)
    return body.replace("ORDER", order)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bulk_load_is_done_when_its_mbarrier_says_so(seed: int | None) -> None:
    read = "ld.shared.u32 %r5, [%r11];"
    assert found(bulk(after=read), seed) == []
    assert found(bulk(before=read, after="st.shared.u32 [%r11], %r1; st.global.u32 [%rd11], %r1;"), seed) == []
    assert found(bulk(after="fence.acq_rel.cta;" + read, order="relaxed.cta"), seed) == []
    for body in (
        bulk(between=read),
        bulk(between="st.shared.u32 [%r11], %r1;"),
        bulk(between="st.global.u32 [%rd11], 3;"),
        bulk(after=read, order="relaxed.cta"),
        bulk(before="bar.sync 0;", after=read)
        .replace("AGAIN:", "bra OUT;\nAGAIN:")
        .replace("bra AGAIN;", "bra AGAIN; OUT:"),
    ):
        assert "cp.async.bulk" in only_race(found(body, seed)).message


def test_a_phase_that_does_not_wait_for_the_bytes() -> None:
    """The object expects none of them: it completes before they come."""
    body = bulk(after="ld.shared.u32 %r5, [%r11];").replace(
        "arrive.expect_tx.shared.b64 _, [%r8], 1024", "arrive.shared.b64 _, [%r8]"
    )
    assert only_race(found(body))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_object_tells_of_its_own_copies(seed: int | None) -> None:
    """Who waits for the second stage knows nothing of the first."""
    body = f"""
    add.s32 %r7, %r9, 4088;
    @!%p1 mbarrier.init.shared.b64 [%r8], 1;
    @!%p1 mbarrier.init.shared.b64 [%r7], 1;
    fence.proxy.async;
    bar.sync 0;
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 1024;
    @!%p1 {LOAD} [%r9], [%rd1], 1024, [%r8];
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r7], 1024;
    @!%p1 {LOAD} [%r9+1024], [%rd1], 1024, [%r7];
    AGAIN:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r7], 0;
    @!%p2 bra AGAIN;
    ld.shared.u32 %r5, [%r11+PLACE];
    """
    assert found(body.replace("PLACE", "1024"), seed) == []
    assert only_race(found(body.replace("PLACE", "0"), seed))


STORE = """
st.shared.u32 [%r11], %r1;
fence.proxy.async.shared::cta;
bar.sync 0;
@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r9], 1024;
@!%p1 cp.async.bulk.commit_group;
WAIT
bar.sync 0;
AFTER
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("wait", "after", "is_ordered"),
    [
        ("@!%p1 cp.async.bulk.wait_group.read 0;", "st.shared.u32 [%r11], 0;", True),
        ("@!%p1 cp.async.bulk.wait_group 0;", "ld.global.u32 %r5, [%rd11]; st.shared.u32 [%r11], 0;", True),
        ("", "ld.shared.u32 %r5, [%r11];", True),
        ("", "st.shared.u32 [%r11], 7;", False),
        ("cp.async.bulk.wait_group.read 1;", "st.shared.u32 [%r11], 7;", False),
        ("@%p1 cp.async.bulk.wait_group.read 0;", "st.shared.u32 [%r11], 7;", False),  # other threads' groups
        ("@!%p1 cp.async.bulk.wait_group.read 0;", "ld.global.u32 %r5, [%rd11];", False),
    ],
)
def test_the_source_of_a_bulk_store(wait: str, after: str, is_ordered: bool, seed: int | None) -> None:
    races_found = found(STORE.replace("WAIT", wait).replace("AFTER", after), seed)
    if is_ordered:
        assert races_found == []
    else:
        assert "cp.async.bulk.global" in only_race(races_found).message


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("opcode", "size"), [("st.async.weak", 4), ("red.async.relaxed.cluster", 4)])
def test_what_is_sent_to_another_block(opcode: str, size: int, seed: int | None) -> None:
    kind = "u32" if opcode.startswith("st") else "add.u32"
    body = f"""
    mov.u32 %r14, %cluster_ctarank; xor.b32 %r14, %r14, 1;
    mapa.shared::cluster.u32 %r15, %r11, %r14; mapa.shared::cluster.u32 %r16, %r8, %r14;
    @!%p1 mbarrier.init.shared.b64 [%r8], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 256;
    {opcode}.shared::cluster.mbarrier::complete_tx::bytes.{kind} [%r15], %r1, [%r16];
    AGAIN:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p2, [%r8], 0;
    @!%p2 bra AGAIN;
    ld.shared.u32 %r5, [%r11];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    launch = {"grid": 2, "cluster": (2, 1, 1)}
    assert found(body, seed, **launch) == []
    early = body.replace("AGAIN:", "ld.shared.u32 %r6, [%r11];\nAGAIN:")
    assert opcode.split(".")[1] in only_race(found(early, seed, **launch)).message


def test_values_that_are_the_same_may_be_copied_at_once() -> None:
    """As a warp does that has a bulk store for one of its threads, and does not elect it."""
    body = STORE.replace("@!%p1", "setp.lt.u32 %p2, %r1, 32; @%p2").replace("WAIT", "").replace("AFTER", "")
    assert found(body) == []
    assert only_race(found(body.replace("[%rd1], [%r9], 1024", "[%rd1], [%r11], 1024")))

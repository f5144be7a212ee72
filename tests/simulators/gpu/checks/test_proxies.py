"""Reads in the async proxy of what threads have written, and mbarrier objects that copies tell, want a fence."""

from __future__ import annotations

import pytest

from simulators.gpu.watch import Finding
from tests.simulators.gpu.checks.racing import races
from tests.simulators.gpu.checks.test_copies import PLACES, SHARED, bulk

SEEDS = [None, *range(4)]
# Each thread writes, and one has it all copied out.
STORE = """
st.shared.v4.u32 [%r11], {%r1, %r1, %r1, %r1};
BEFORE
bar.sync 0;
AFTER
@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r9], 1024;
@!%p1 cp.async.bulk.commit_group;
@!%p1 cp.async.bulk.wait_group 0;
"""


def found(body: str, seed: int | None = None, **launch: object) -> list[Finding]:
    return races(PLACES + body, 256, 256, variables=SHARED, seed=seed, block=64, **launch)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("before", "after", "is_fenced"),
    [
        ("fence.proxy.async.shared::cta;", "", True),
        ("fence.proxy.async.shared::cluster;", "", True),
        ("fence.proxy.async;", "", True),
        ("", "fence.proxy.async;", True),
        ("", "@!%p1 fence.proxy.async.shared::cta;", True),  # by who asks for the copy
        ("bar.sync 0;\n@!%p1 fence.proxy.async;", "", True),
        ("fence.proxy.async;\nld.shared.u32 %r5, [%r11];", "", True),
        ("", "", False),
        ("fence.acq_rel.cta;", "", False),
        ("@!%p1 fence.proxy.async;", "", False),  # for what this one knows: itself
        ("", "@%p1 fence.proxy.async;", False),  # by others, and nothing tells the one of it
        ("fence.proxy.async.global;", "", False),
        ("fence.mbarrier_init.release.cluster;", "", False),
        ("fence.proxy.async;\nst.shared.u32 [%r11], 5;", "", False),  # one that comes too soon
        ("", "membar.gl;", False),
    ],
)
def test_a_bulk_store_of_what_threads_have_written(before: str, after: str, is_fenced: bool, seed: int | None) -> None:
    findings = found(STORE.replace("BEFORE", before).replace("AFTER", after), seed)
    if is_fenced:
        assert findings == []
        return
    assert {one.kind for one in findings} == {"proxy"}
    assert "st.shared" in findings[0].message and "cp.async.bulk.global" in findings[0].message
    assert findings[0].message.count("thread (") == 2


def test_a_race_is_none_of_a_proxy() -> None:
    body = STORE.replace("BEFORE", "").replace("AFTER", "").replace("bar.sync 0;", "")
    kinds = {(one.kind, "(33" in one.message) for one in found(body + "")}
    assert {"race", "proxy"} >= {kind for kind, _ in kinds} and "race" in {kind for kind, _ in kinds}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fence_is_passed_on_with_what_it_is_for(seed: int | None) -> None:
    """From the threads to one of another warp by an mbarrier, and from there to a third by a barrier."""
    body = """
    @!%p1 mbarrier.init.shared.b64 [%r8], 63;
    bar.sync 0;
    st.shared.u32 [%r11], %r1;
    FENCE
    @%p1 mbarrier.arrive.shared.b64 _, [%r8];
    setp.ne.u32 %p2, %r1, 40;
    @%p2 bra MEET;
    AGAIN:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r8], 0;
    @!%p3 bra AGAIN;
    HERE
    MEET:
    barrier.cta.sync 1;
    @!%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r9], 1024;
    @!%p1 cp.async.bulk.commit_group;
    @!%p1 cp.async.bulk.wait_group 0;
    """
    fence = "fence.proxy.async.shared::cta;"
    assert found(body.replace("FENCE", fence).replace("HERE", ""), seed) == []
    own = body.replace("FENCE", "@!%p1 " + fence)
    assert found(own.replace("HERE", fence), seed) == []
    assert {one.kind for one in found(own.replace("HERE", ""), seed)} == {"proxy"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bulk_load_of_what_threads_have_written(seed: int | None) -> None:
    """In global memory, before a barrier of the block."""
    write = "st.global.u32 [%rd11], %r1;"
    for fence in ("fence.proxy.async;", "fence.proxy.async.global;"):
        assert found(bulk(before=write + fence), seed) == []
    for fence in ("", "fence.proxy.async.shared::cta;"):
        assert {one.kind for one in found(bulk(before=write + fence), seed)} == {"proxy"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("fence", "is_fenced"),
    [
        ("fence.mbarrier_init.release.cluster;", True),
        ("fence.proxy.async.shared::cta;", True),
        ("fence.proxy.async;", True),
        ("", False),
        ("fence.acq_rel.cluster;", False),
        ("fence.proxy.async.global;", False),
    ],
)
def test_an_object_that_a_copy_tells(fence: str, is_fenced: bool, seed: int | None) -> None:
    findings = found(
        bulk(after="ld.shared.u32 %r5, [%r11];").replace("fence.mbarrier_init.release.cluster;", fence), seed
    )
    if is_fenced:
        assert findings == []
        return
    (finding,) = findings
    assert finding.kind == "mbarrier init"
    assert "mbarrier.init" in finding.message and "cp.async.bulk" in finding.message


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("arrive", "is_ordered"),
    [
        ("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;", True),
        ("barrier.cluster.arrive.aligned;", True),
        ("barrier.cluster.arrive.relaxed.aligned;", False),
    ],
)
def test_an_object_that_another_block_arrives_at(arrive: str, is_ordered: bool, seed: int | None) -> None:
    body = f"""
    @!%p1 mbarrier.init.shared.b64 [%r8], 1;
    {arrive}
    barrier.cluster.wait.aligned;
    mov.u32 %r14, %cluster_ctarank; xor.b32 %r14, %r14, 1; mapa.shared::cluster.u32 %r16, %r8, %r14;
    @!%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r16];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    findings = found(body, seed, grid=2, cluster=(2, 1, 1))
    assert {one.kind for one in findings} == (set() if is_ordered else {"mbarrier init"})

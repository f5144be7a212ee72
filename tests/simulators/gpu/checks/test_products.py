"""wgmma reads shared memory, and owns its accumulators, until it is waited for."""

from __future__ import annotations

import pytest

from simulators.gpu.checks.races import Races
from simulators.gpu.chip import H200
from simulators.gpu.gpu import Gpu
from simulators.gpu.watch import Finding
from tests.simulators.gpu.checks.racing import only_race
from tests.simulators.gpu.instructions.boxes import aligned
from tests.simulators.gpu.instructions.test_warpgroup import Form, Operands, body
from tests.simulators.gpu.launching import run

SEEDS = [None, *range(4)]
FORM = Form(columns=8)
FENCE = "fence.proxy.async.shared::cta;"
# The same value as is there.
AGAIN = "ld.shared.b32 %r4, [%to]; st.shared.b32 [%to], %r4;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


ARRAYS = Operands(FORM).arrays()


def found(text: str, seed: int | None = None) -> list[Finding]:
    return list(
        run(text, [aligned(one) for one in ARRAYS], block=128, gpu=Gpu(H200, seed=seed, watchers=[Races])).findings
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_may_be_written_after_the_wait_alone(seed: int | None) -> None:
    assert found(body(FORM), seed) == []
    assert found(body(FORM).replace(WAIT, WAIT + "bar.sync 0;" + AGAIN), seed) == []
    race = only_race(found(body(FORM, after=AGAIN), seed))
    assert "st.shared.b32" in race.message and "wgmma.mma_async" in race.message
    assert only_race(found(body(FORM).replace(WAIT, AGAIN + WAIT), seed))
    too_few = WAIT.replace("0;", "1;") + "bar.sync 0;" + AGAIN + WAIT
    assert only_race(found(body(FORM).replace(WAIT, too_few), seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_warp_waits_for_all_four(seed: int | None) -> None:
    """As a kernel does in which one thread of a warpgroup gives a stage away."""
    one = "setp.lt.u32 %p2, %r1, 32; setp.eq.u32 %p3, %r1, 0; @%p3 st.shared.b32 [%base+PLACE], %r1;"
    text = body(FORM).replace(WAIT, WAIT + one)
    for place in (0, 64, 16384, 16448):
        assert found(text.replace("PLACE", str(place)), seed) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_that_others_write_come_after_a_barrier(seed: int | None) -> None:
    race = only_race(found(body(FORM).replace(FENCE + " bar.sync 0;", FENCE), seed))
    assert "st.shared" in race.message and "wgmma.mma_async" in race.message


@pytest.mark.parametrize("seed", SEEDS)
def test_what_threads_have_written_is_fenced(seed: int | None) -> None:
    (finding, *_) = findings = found(body(FORM).replace(FENCE, ""), seed)
    assert {one.kind for one in findings} == {"proxy"}
    assert "wgmma.mma_async" in finding.message and "st.shared.v4.b32" in finding.message
    # By those who read, if the barrier is between.
    assert found(body(FORM).replace(FENCE + " bar.sync 0;", "bar.sync 0; fence.proxy.async;"), seed) == []
    assert found(body(FORM).replace(FENCE, "fence.proxy.async.global;"), seed) != []
    # One thread's fence is for what it knows.
    late = "setp.eq.u32 %p2, %r1, 5; @%p2 fence.proxy.async; bar.sync 0;"
    assert found(body(FORM).replace(FENCE + " bar.sync 0;", late), seed) != []
    assert found(body(FORM).replace(FENCE + " bar.sync 0;", "bar.sync 0;" + late), seed) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("use", ["add.u32 %r4, %d1, 1;", "mov.b32 %d3, 0;", "st.global.b32 [%rd16], %d0;"])
def test_accumulators_may_be_used_after_the_wait_alone(use: str, seed: int | None) -> None:
    (finding,) = found(body(FORM, after=use), seed)
    assert finding.kind == "accumulator" and use[:-1] in finding.message and "wgmma.mma_async" in finding.message
    assert found(body(FORM).replace(WAIT, WAIT + use), seed) == []
    assert found(body(FORM, after="add.u32 %r4, %a1, 1;"), seed) == []


def test_accumulators_of_a_later_group_are_not_waited_for() -> None:
    issue = body(FORM, wait="1")
    issue = issue[issue.index("wgmma.mma_async") : issue.index("wgmma.wait_group")]
    other = issue.replace("%d0, %d1, %d2, %d3", "%f0, %f1, %f2, %f3")
    text = body(FORM, wait="1").replace(issue, issue + other)
    assert found(text.replace("aligned 1;", "aligned 1; mov.b32 %r4, %d0;")) == []
    (finding,) = found(text.replace("aligned 1;", "aligned 1; mov.b32 %r4, %f0;"))
    assert finding.kind == "accumulator"

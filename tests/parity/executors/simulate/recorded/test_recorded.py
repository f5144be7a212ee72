"""The simulator gives, for small cases of the twins of norms, heads, caches and routing, what an H200 gave."""

from __future__ import annotations

from functools import cache

import pytest

from optimized.compile.arch import SM_90A
from optimized.compile.library import Library
from parity.executors.simulate.executor import SimulateExecutor
from tests.parity.executors.simulate.recorded.cases import CHANGES, all_cases
from tests.parity.executors.simulate.recorded.comparison import H200_ANSWERS, Difference, differences, too_far
from tests.parity.executors.simulate.recorded.store import Recording, load

EVERY = 12  # one case in so many, in each run of the tests


@cache
def recording() -> Recording:
    return load(H200_ANSWERS)


def compared(twin: str, every: int, kernels: Library) -> list[Difference]:
    executor = SimulateExecutor(SM_90A, kernels)
    cases = [case for case in recording().cases if case.twin == twin]
    return [one for case in cases[::every] for one in differences(executor, case)]


def test_the_recording_has_every_case() -> None:
    assert recording().facts["chip"] == "NVIDIA H200"
    assert [(case.twin, case.config) for case in recording().cases] == all_cases()


def test_the_recording_is_small() -> None:
    assert H200_ANSWERS.stat().st_size < 2_000_000


@pytest.mark.parametrize("twin", sorted(CHANGES))
def test_some_cases_answer_as_the_chip_did(twin: str, kernels: Library) -> None:
    assert too_far(compared(twin, EVERY, kernels)) == []


@pytest.mark.slow
@pytest.mark.parametrize("twin", sorted(CHANGES))
def test_all_cases_answer_as_the_chip_did(twin: str, kernels: Library) -> None:
    assert too_far(compared(twin, 1, kernels)) == []

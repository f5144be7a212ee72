"""Recording and comparing, without a chip: the simulator stands for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimized.compile.arch import SM_90A
from optimized.compile.library import Library
from parity.cases import names
from parity.executors.executor import Outcome
from parity.executors.simulate.executor import SimulateExecutor
from parity.twin import Config
from reference.formats import Array
from tests.parity.executors.simulate.recorded import comparison, record
from tests.parity.executors.simulate.recorded.cases import CHANGES, all_cases, configurations
from tests.parity.executors.simulate.recorded.comparison import Bound, InputsDrifted, differences, too_far
from tests.parity.executors.simulate.recorded.record import WrongAnswer, recorded
from tests.parity.executors.simulate.recorded.store import Case, Recording, load, save
from tests.parity.host import CORNER, RMS_NORM, HostExecutor

NORM = "rms_norm", next(configurations("rms_norm"))
WRITE = "kv_write", next(configurations("kv_write"))


@pytest.fixture(scope="module")
def executor(kernels: Library) -> SimulateExecutor:
    return SimulateExecutor(SM_90A, kernels)


@pytest.fixture(scope="module")
def recording(executor: SimulateExecutor, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Of two cases, kept and read again."""
    path = tmp_path_factory.mktemp("recording") / "chip.npz"
    made = Recording({"chip": "none"}, [recorded(executor, *one) for one in (NORM, WRITE)])
    save(path, made)
    found = load(path)
    assert found.facts == made.facts
    for one, other in zip(found.cases, made.cases, strict=True):
        assert (one.twin, one.config, one.inputs) == (other.twin, other.config, other.inputs)
        assert [answer.hash for answer in one.answers] == [answer.hash for answer in other.answers]
        for answer, same in zip(one.answers, other.answers, strict=True):
            assert (answer.changed is None) is (same.changed is None)
            if answer.changed is not None and same.changed is not None:
                assert np.array_equal(answer.changed, same.changed)
    return found


class Erring(SimulateExecutor):
    """Gives one bit of the first element wrong: of its answer, or of one of the two."""

    _method: str
    _which: int

    @classmethod
    def of(cls, executor: SimulateExecutor, method: str, which: int = 0) -> Erring:
        self = cls.__new__(cls)
        self.__dict__.update(executor.__dict__, _method=method, _which=which)
        return self

    def run(self, *arguments: Any, **named: Any) -> Outcome:
        outcome = super().run(*arguments, **named)
        return replace(outcome, results=[self._spoilt(one, place) for place, one in enumerate(outcome.results)])

    def run_once(self, *arguments: Any, **named: Any) -> list[Array]:
        result = super().run_once(*arguments, **named)
        return result if self._method == "run" else self._spoilt(result, 0)

    def _spoilt(self, result: Any, place: int) -> list[Array]:
        if place == self._which:
            result[0].view(np.uint16).reshape(-1)[0] ^= 1 << 14
        return list(result)


def norm(recording: Recording) -> Case:
    return recording.cases[0]


def off_by(case: Case, ulps: int, elements: int) -> Case:
    """As if the chip had given other bits for the first elements."""
    (answer,) = case.answers
    assert answer.changed is not None
    changed = answer.changed.copy()
    changed.reshape(-1)[:elements] += changed.dtype.type(ulps)
    return replace(case, answers=[replace(answer, changed=changed)])


def test_every_case_is_one() -> None:
    cases = [(twin, tuple(sorted(config.items()))) for twin, config in all_cases()]
    assert len(set(cases)) == len(cases)
    assert {twin for twin, _ in cases} == set(CHANGES) <= set(names())
    assert all(15 <= len(list(configurations(twin))) <= 27 for twin in CHANGES)


def test_what_was_recorded_is_given_again(executor: SimulateExecutor, recording: Recording) -> None:
    found = [one for case in recording.cases for one in differences(executor, case)]
    assert [one.output for one in found] == ["out", "k_cache", "v_cache"] and too_far(found) == []
    assert all(one.count and not one.differing for one in found)


def test_other_bits_are_told(executor: SimulateExecutor, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "BOUNDS", {"rms_norm": {"bfloat16": Bound(1, 0.01)}})
    count = norm(recording).config["tokens"] * norm(recording).config["hidden"]
    assert too_far(differences(executor, off_by(norm(recording), 1, count // 100))) == []
    (share,) = too_far(differences(executor, off_by(norm(recording), 1, count // 50)))
    assert "elements of bfloat16 differ, 1.0% may" in share
    (far,) = too_far(differences(executor, off_by(norm(recording), 200, 1)))
    assert far.startswith("out of") and "ULP; [0, 0]: chip 0x" in far
    monkeypatch.setattr(comparison, "BOUNDS", {})
    assert len(too_far(differences(executor, off_by(norm(recording), 1, 1)))) == 2


def test_an_exact_answer_that_is_none_any_more_is_no_wrong_answer(
    executor: SimulateExecutor, recording: Recording
) -> None:
    """Of exact answers there is a hash alone: it tells whether the reference is what it was."""
    case = recording.cases[1]
    answers = [replace(answer, hash="0") for answer in case.answers]
    with pytest.raises(InputsDrifted, match="the reference's k_cache is another"):
        differences(executor, replace(case, answers=answers))


def test_a_wrong_exact_answer_is_told(executor: SimulateExecutor, recording: Recording) -> None:
    found = differences(Erring.of(executor, "run_once"), recording.cases[1])
    assert found[0].differing == 1 and found[0].ulps == np.inf and len(too_far(found)) == 2
    assert found[1].differing == 0


def test_other_inputs_are_no_wrong_answer(executor: SimulateExecutor, recording: Recording) -> None:
    with pytest.raises(InputsDrifted, match="rms_norm"):
        differences(executor, replace(norm(recording), inputs="another"))


@pytest.mark.parametrize("which", [0, 1])
def test_a_chip_that_errs_is_not_recorded(executor: SimulateExecutor, which: int) -> None:
    with pytest.raises(WrongAnswer, match="out is wrong, or is not the same twice"):
        recorded(Erring.of(executor, "run", which), *NORM)


def test_the_executor_of_a_gpu_is_recorded(host: HostExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """In host memory, with tensors of torch."""
    monkeypatch.setattr(record, "twin_named", lambda name: RMS_NORM)
    case = recorded(host, "rms_norm", CORNER)
    (answer,) = case.answers
    assert answer.changed is not None and answer.changed.shape == (9, 256) and answer.changed.dtype == np.uint16
    assert answer.changed.any()


def test_a_case_that_fails_costs_no_other(executor: SimulateExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = "rms_norm", {**NORM[1], "rows": "unknown"}
    monkeypatch.setattr(record, "all_cases", lambda: [unknown, NORM])
    cases, failures = record.record(executor)
    assert [case.config for case in cases] == [NORM[1]]
    (failure,) = failures
    assert failure.startswith("rms_norm {") and "unknown kind of rows 'unknown'" in failure


def test_configurations_are_what_json_holds(tmp_path: Path) -> None:
    config: Config = NORM[1]
    save(tmp_path / "none.npz", Recording({}, [Case("rms_norm", config, "", [])]))
    assert load(tmp_path / "none.npz").cases[0].config == config

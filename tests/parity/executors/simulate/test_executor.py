"""The simulate executor: right where a kernel is, and not where nothing was computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.usage import UsageError
from optimized.compile.arch import SM_90A, SM_100A, Arch, arch_named
from optimized.compile.library import Library
from parity.cases import twin_named
from parity.commands import on_simulator
from parity.commands.workers import Case
from parity.executors.simulate.executor import MOST_APART, MOST_ELEMENTS, SimulateExecutor
from parity.harness import try_case
from parity.report.table import repeat_command
from parity.twin import Call
from reference.formats import Array
from tests.parity.executors.simulate.recorder import Recorder

CONFIG = {"tokens": 5, "hidden": 256, "dtype": "bfloat16", "weight_bias": 0.0, "rows": "normal", "row_stride": 0}


@pytest.mark.parametrize(
    ("arch", "changed"),
    [
        (SM_90A, {}),
        (SM_90A, {"rows": "nan"}),
        (SM_90A, {"row_stride": 300}),
        (SM_90A, {"tokens": 0}),
        (SM_100A, {"dtype": "float32"}),
    ],
)
def test_a_norm_holds(arch: Arch, changed: dict[str, object], kernels: Library) -> None:
    record = try_case(twin_named("rms_norm"), CONFIG | changed, SimulateExecutor(arch, kernels))
    assert record.ok, record.reason
    assert record.executor == "simulate" and record.arch == arch.name and record.chip in ("NVIDIA H200", "NVIDIA B200")
    assert bool(record.kernels) is (changed != {"tokens": 0}) and record.kernels == sorted(record.kernels)


def test_nothing_computed_is_a_failure(kernels: Library) -> None:
    """The negative control: twice the launch, and poison for a result."""
    recorder = Recorder()
    record = try_case(twin_named("rms_norm"), CONFIG, SimulateExecutor(SM_90A, kernels, recorder))
    assert record.status == "fail" and "is off by inf ULP" in (record.reason or "")
    assert len(recorder.launches) == 2 and recorder.allocations == {}


def test_an_error_of_the_simulator_is_the_cases_failure(kernels: Library) -> None:
    executor = SimulateExecutor(SM_90A, kernels, Recorder(ZeroDivisionError("in the simulator")))
    record = try_case(twin_named("rms_norm"), CONFIG, executor)
    assert record.status == "fail" and "ZeroDivisionError: in the simulator" in (record.reason or "")


@pytest.mark.parametrize(
    ("name", "arrays", "repeated"),
    [
        ("rms_norm", {"x": np.zeros((2, 1024), np.float32), "weight": np.zeros(1024, np.float32)}, "x"),
        ("embedding", {"token_ids": np.zeros(2, np.int32), "table": np.zeros((9, 1024), np.float32)}, "token_ids"),
    ],
)
def test_what_would_take_hours_is_skipped(name: str, arrays: dict[str, Array], repeated: str, kernels: Library) -> None:
    """Whether the array that is repeated is large, or only the output."""
    constants = {"eps": 1e-6} if name == "rms_norm" else {}
    call = Call(arrays, constants, repeated={repeated: MOST_ELEMENTS // 1024 + 1})
    twin = replace(twin_named(name), inputs=lambda config, random: call)
    record = try_case(twin, CONFIG, SimulateExecutor(SM_90A, kernels, Recorder()))
    assert record.status == "skipped" and f"more than {MOST_ELEMENTS} elements" in (record.reason or "")


def test_rows_of_an_output_that_are_too_far_apart_are_skipped(kernels: Library) -> None:
    far = CONFIG | {"out_stride": MOST_APART // 5 + 1}
    record = try_case(twin_named("rms_norm"), far, SimulateExecutor(SM_90A, kernels, Recorder()))
    assert record.status == "skipped" and "too much memory to simulate" in (record.reason or "")


@pytest.mark.parametrize("place", [{"offset": 1}, {"offset": 8}, {"offset": {"out": 1}}, {"out_stride": 300}], ids=str)
def test_arrays_lie_where_they_are_told_to(place: dict[str, object], kernels: Library) -> None:
    record = try_case(twin_named("rms_norm"), CONFIG | place, SimulateExecutor(SM_90A, kernels))
    assert record.ok, record.reason


def test_the_second_call_finds_its_inputs_where_the_first_did(kernels: Library) -> None:
    """As memory that was never written, but for them; its output is memory that host code asked for."""
    recorder = Recorder()
    try_case(twin_named("rms_norm"), CONFIG | {"offset": {"x": 1}}, SimulateExecutor(SM_90A, kernels, recorder))
    first, second = ({name: address for address, (_, name, _) in one.items()} for one in recorder.seen)
    assert first["x"] == second["x"] and first["weight"] == second["weight"] and first["x"] % 512 == 2
    assert "out" in first and "out" not in second and "scratch 2" in second


def test_repeated_rows_are_compared(kernels: Library) -> None:
    rows = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    call = Call({"x": rows, "weight": np.ones(256, np.float32)}, {"eps": 1e-6}, repeated={"x": 10})
    twin = replace(twin_named("rms_norm"), inputs=lambda config, random: call)
    record = try_case(twin, CONFIG, SimulateExecutor(SM_90A, kernels))
    assert record.ok, record.reason


def test_a_case_of_the_command_is_tried_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch, kernels: Library) -> None:
    monkeypatch.setattr(on_simulator, "_executor", lambda arch: SimulateExecutor(arch_named(arch), kernels))
    record, spread = on_simulator.simulate_case(Case("rms_norm", "simulate", "sm_90a", CONFIG))
    assert record.ok and spread["bfloat16"].counts.sum() == 2 * 5 * 256, "both calls are in the histogram"
    assert "--on simulate --arch sm_90a --case" in repeat_command(record)


def test_without_llvmlite_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_simulator, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'diptych\[compile\]'"):
        on_simulator.need_linker()

"""The harness finds what is wrong: each fault is planted in a panel that is right otherwise, and must be told of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from optimized.compile.arch import SM_90A
from optimized.compile.key import source_hash
from parity import harness
from parity.cases import twin_named
from parity.executors.executor import Fault, Outcome, Skip
from parity.harness import call_of, configurations, seed_of, try_case
from parity.record import Record
from parity.twin import Call, Twin
from tests.parity.host import ADD_RMS_NORM, CORNER, RMS_NORM, ROUTER, HostExecutor, planted
from tests.parity.planted import KEPT

IS_OFF = r"out\[.*\] is off by .* ULP"


def record_of(host: HostExecutor, twin: Twin, **changes: object) -> Record:
    return try_case(twin, CORNER | changes, host)


def assert_caught(record: Record, reason: str) -> None:
    assert record.status == "fail" and not record.ok
    assert record.reason is not None
    assert re.search(reason, record.reason), record.reason


@pytest.mark.parametrize("twin", [RMS_NORM, ADD_RMS_NORM, ROUTER], ids=lambda twin: twin.name)
def test_what_is_right_passes_everywhere(host: HostExecutor, twin: Twin) -> None:
    for config in configurations(twin, 5):
        record = try_case(twin, config, host)
        assert record.ok, (config, record.reason)
        assert record.max_ulp is not None and record.bound is not None and record.max_ulp <= record.bound
        assert json.loads(json.dumps(record.as_json()))["ok"] is True


@pytest.mark.parametrize("fault", ["one_wrong_lane", "one_row_off", "zeroed_output", "unwritten_tail", "unwritten_row"])
@pytest.mark.parametrize("changes", [{}, {"dtype": "float32"}, {"row_stride": 300}], ids=str)
def test_wrong_numbers(host: HostExecutor, fault: str, changes: dict[str, object]) -> None:
    record = record_of(host, planted(RMS_NORM, fault), **changes)
    assert_caught(record, IS_OFF)
    assert record.mismatches > 0


def test_nan_where_a_number_is(host: HostExecutor) -> None:
    record = record_of(host, planted(RMS_NORM, "nan_where_a_number_is"))
    assert_caught(record, r"out\[2, 5\] is off by inf ULP")
    assert record.mismatches == 2  # one in each call
    assert record.as_json()["max_ulp"] == "inf"


def test_a_number_where_nan_is(host: HostExecutor) -> None:
    fault = planted(RMS_NORM, "number_where_nan_is")
    assert record_of(host, fault).ok
    assert_caught(record_of(host, fault, rows="nan"), "is off by inf ULP")


def test_a_wrong_second_call(host: HostExecutor) -> None:
    record = record_of(host, planted(RMS_NORM, "wrong_second_call"))
    assert_caught(record, r"out\[3, 1\] is off by .*, in the second call")


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()


@pytest.mark.parametrize("fault", ["result_kept", "address_remembered"])
def test_what_is_kept_from_the_first_call(host: HostExecutor, nothing_kept: None, fault: str) -> None:
    """Its inputs are elsewhere, or others are where they were."""
    assert_caught(record_of(host, planted(RMS_NORM, fault)), r"out\[.*\] is off by .*, in the second call")


def test_the_second_call_of_a_large_case_is_the_first_once_more(
    host: HostExecutor, nothing_kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "MOST_OF_TWO_CALLS", 9 * 256)
    assert record_of(host, planted(RMS_NORM, "result_kept")).ok


@pytest.mark.parametrize("name", ["rms_norm", "kv_write", "moe_dispatch"])
def test_both_calls_are_of_the_same_sizes(name: str) -> None:
    twin = twin_named(name)
    for config in [*twin.corners()][1:9]:
        first, second = (call_of(twin, config, number) for number in (0, 1))
        assert first.constants == second.constants
        pairs = [(array, second.arrays[key]) for key, array in first.arrays.items()]
        assert all((one.shape, one.dtype, one.strides) == (two.shape, two.dtype, two.strides) for one, two in pairs)
        assert all(one.tobytes() != two.tobytes() for one, two in pairs[:1] if one.size)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("scratch_not_cleared", IS_OFF),
        ("scratch_overrun", r"memory around an array of shape \[9\]"),
        ("own_memory_unwritten", r"out\[.*\] is off by .*, in the second call"),
        ("own_memory_of_another_dtype", r"out is returned as float32\[9, 256\]; the reference's is bfloat16"),
        (
            "own_memory_of_another_shape",
            r"out is returned as bfloat16\[10, 256\]; the reference's is ",
        ),
        ("memory_of_nobody_returned", "out is returned in memory that the device was not asked for"),
    ],
)
def test_memory_that_is_asked_of_the_device(host: HostExecutor, fault: str, told: str) -> None:
    assert_caught(record_of(host, planted(RMS_NORM, fault)), told)


def test_what_is_returned_without_memory_for_it(host: HostExecutor) -> None:
    """An output that overwrites an input is that input."""
    assert_caught(record_of(host, planted(ADD_RMS_NORM, "residual_returned_alone")), "is not the input residual")


@pytest.mark.parametrize("offset", [1, {"x": 1}, {"weight": 1}, {"out": 1}])
def test_arrays_that_begin_anywhere(host: HostExecutor, offset: object) -> None:
    assert record_of(host, planted(RMS_NORM, "aligned_only")).ok
    assert record_of(host, planted(RMS_NORM, "aligned_only"), offset=8).ok
    assert record_of(host, RMS_NORM, offset=offset).ok
    assert_caught(record_of(host, planted(RMS_NORM, "aligned_only"), offset=offset), "AssertionError")
    assert_caught(record_of(host, planted(RMS_NORM, "guard_before_overwritten"), offset=offset), "memory around")


@pytest.mark.parametrize("out_stride", [300, {"out": 300}])
def test_outputs_whose_rows_lie_apart(host: HostExecutor, out_stride: object) -> None:
    assert record_of(host, RMS_NORM, out_stride=out_stride).ok
    assert_caught(
        record_of(host, planted(RMS_NORM, "stride_of_out_ignored"), out_stride=out_stride), "between its rows"
    )
    assert_caught(record_of(host, RMS_NORM, out_stride=255), "they cannot be 255 apart")


def test_places_of_arrays_that_there_are_not(host: HostExecutor) -> None:
    assert_caught(record_of(host, RMS_NORM, offset={"y": 1}), "ValueError: unknown 'y'; known are x, weight, out")
    assert_caught(record_of(host, RMS_NORM, out_stride={"x": 300}), "ValueError: unknown 'x'; known are out")


def test_a_value_rounded_twice(host: HostExecutor) -> None:
    assert_caught(record_of(host, planted(RMS_NORM, "rounded_twice")), f"{IS_OFF}|rounded elsewhere")


PARTS = ["", "_in_the_last_row", "_in_the_last_lanes", "_in_a_lane_of_16"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("fault", ["rounded_twice", "truncated"])
def test_a_value_rounded_wrongly_anywhere(host: HostExecutor, fault: str, part: str) -> None:
    """A floor of float32's ULPs hides none of it."""
    wide = replace(planted(RMS_NORM, fault + part), outputs=tuple(replace(one, floor=2.0) for one in RMS_NORM.outputs))
    record = record_of(host, wide, tokens=40)
    assert_caught(record, r"out\[\d+, \d+\] is off by .* ULP; 0\.\d+ are allowed")
    assert record.differing > 0


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_rounding_anywhere(host: HostExecutor, part: str) -> None:
    """The result errs less than the contract does: only the reference's own result tells."""
    record = record_of(host, planted(ADD_RMS_NORM, "sum_normalised_unrounded" + part), tokens=40)
    assert_caught(
        record, r"of normed\[.*\] are not the reference's own: it is rounded elsewhere than the reference says"
    )
    assert 0 < record.differing == record.as_json()["differing"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_sum_of_two_has_one_result(host: HostExecutor, dtype: str) -> None:
    record = record_of(host, planted(ADD_RMS_NORM, "residual_truncated"), dtype=dtype)
    assert_caught(record, r"residual\[\d+, \d+\] differs, and it must be equal")


def test_a_tie_broken_the_wrong_way(host: HostExecutor) -> None:
    record = record_of(host, planted(ROUTER, "tie_to_the_higher_id"))
    assert_caught(record, r"expert_ids\[\d+, \d+\] differs, and it must be equal")
    assert record.output == "expert_ids"


def test_an_input_scribbled_on(host: HostExecutor) -> None:
    assert_caught(record_of(host, planted(RMS_NORM, "input_scribbled_on")), "the input x was written to")


@pytest.mark.parametrize("fault", ["guard_behind_overwritten", "guard_before_overwritten"])
def test_a_guard_overwritten(host: HostExecutor, fault: str) -> None:
    assert_caught(record_of(host, planted(RMS_NORM, fault)), r"memory .* shape \[9, 256\].* was written to")


def test_a_panel_that_raises_is_a_record(host: HostExecutor) -> None:
    record = record_of(host, planted(RMS_NORM, "raises"))
    assert_caught(record, r"RuntimeError: the launch failed \(.*planted.py:\d+\)")


def test_rows_that_stand_for_many_are_each_compared(host: HostExecutor) -> None:
    def repeated(config: object, random: np.random.Generator) -> Call:
        return replace(RMS_NORM.inputs(CORNER, random), repeated={"x": 31})

    assert record_of(host, replace(RMS_NORM, inputs=repeated)).ok
    assert_caught(
        record_of(host, replace(planted(RMS_NORM, "unwritten_row"), inputs=repeated)), "rows of out that repeat others"
    )


class Refusing:
    """An executor that comes to no result."""

    name = "refusing"
    arch = SM_90A
    chip: str | None = None
    computes = False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, *_: object) -> Outcome:
        raise self.error


def test_faults_and_skips_are_records() -> None:
    skipped = try_case(RMS_NORM, CORNER, Refusing(Skip("there is no memory")))
    assert (skipped.status, skipped.ok, skipped.reason) == ("skipped", False, "there is no memory")
    assert_caught(try_case(RMS_NORM, CORNER, Refusing(Fault("a promise is broken"))), "^a promise is broken$")
    assert_caught(try_case(RMS_NORM, {}, Refusing(Skip(""))), "KeyError")


def test_a_search_repeats_itself_and_repeats_no_configuration() -> None:
    found = [json.dumps(config) for config in configurations(RMS_NORM, 15, seed=3)]
    assert found == [json.dumps(config) for config in configurations(RMS_NORM, 15, seed=3)]
    assert found != [json.dumps(config) for config in configurations(RMS_NORM, 15, seed=4)]
    assert len(set(found)) == len(found) > len(list(RMS_NORM.corners()))


def test_a_search_does_not_depend_on_what_is_imported() -> None:
    """Hypothesis draws numbers from the source of modules that happen to be there."""
    found = {
        subprocess.run(
            [
                sys.executable,
                "-c",
                f"import json, {modules}\n"
                "from parity.cases import twin_named\nfrom parity.harness import configurations\n"
                "print(json.dumps([*configurations(twin_named('rms_norm'), 60)]))",
            ],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
            timeout=300,
        ).stdout
        for modules in ("sys", "engine.cli, parity.commands.parity, tests.parity.test_judge, parity.bench.serve")
    }
    assert len(found) == 1 and len(json.loads(found.pop())) > 100


def test_a_record_says_what_was_tried(host: HostExecutor) -> None:
    record = record_of(host, RMS_NORM)
    assert record.source == source_hash() and record.as_json()["source"] == record.source
    assert try_case(RMS_NORM, CORNER, Refusing(Skip(""))).source == record.source


def test_a_case_has_the_same_inputs_wherever_it_is_tried() -> None:
    turned = dict(reversed(CORNER.items()))
    assert seed_of(CORNER) == seed_of(turned) != seed_of(CORNER | {"tokens": 10})


def test_what_is_watched_is_what_was_judged(host: HostExecutor) -> None:
    seen = []
    try_case(RMS_NORM, CORNER, host, lambda call, judgements: seen.append((call, judgements)))
    ((call, judgements),) = seen
    assert list(call.arrays) == ["x", "weight"]
    assert [(one.output, one.dtype, one.errors.shape) for one in judgements] == [("out", "bfloat16", (9, 256))] * 2

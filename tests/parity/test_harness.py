"""The harness finds what is wrong: each fault is planted in a panel that is right otherwise, and must be told of."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from optimized.compile.arch import SM_90A
from parity.executors.executor import Fault, Outcome, Skip
from parity.harness import configurations, seed_of, try_case
from parity.record import Record
from parity.twin import Call, Twin
from tests.parity.host import ADD_RMS_NORM, CORNER, RMS_NORM, ROUTER, HostExecutor, planted

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


def test_a_value_rounded_twice(host: HostExecutor) -> None:
    assert_caught(record_of(host, planted(RMS_NORM, "rounded_twice")), f"{IS_OFF}|rounded elsewhere")


@pytest.mark.parametrize("fault", ["rounded_twice", "truncated"])
def test_a_value_rounded_wrongly_within_a_wide_bound(host: HostExecutor, fault: str) -> None:
    wide = replace(planted(RMS_NORM, fault), outputs=tuple(replace(one, floor=2.0) for one in RMS_NORM.outputs))
    assert_caught(record_of(host, wide), "rounded elsewhere than the reference says")


def test_a_missing_rounding(host: HostExecutor) -> None:
    """The result errs less than the contract does: only the reference's own result tells."""
    assert_caught(
        record_of(host, planted(ADD_RMS_NORM, "sum_normalised_unrounded")),
        "of normed are not the reference's own: it is rounded elsewhere than the reference says",
    )


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


def test_a_case_has_the_same_inputs_wherever_it_is_tried() -> None:
    turned = dict(reversed(CORNER.items()))
    assert seed_of(CORNER) == seed_of(turned) != seed_of(CORNER | {"tokens": 10})


def test_what_is_watched_is_what_was_judged(host: HostExecutor) -> None:
    seen = []
    try_case(RMS_NORM, CORNER, host, lambda call, judgements: seen.append((call, judgements)))
    ((call, judgements),) = seen
    assert list(call.arrays) == ["x", "weight"]
    assert [(one.output, one.dtype, one.errors.shape) for one in judgements] == [("out", "bfloat16", (9, 256))] * 2

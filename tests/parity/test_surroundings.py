"""What lies around an array, and what must be written in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.harness import try_case
from parity.twin import Call, Output
from tests.parity.host import ADD_RMS_NORM, CORNER, RMS_NORM, HostExecutor, planted
from tests.parity.test_harness import assert_caught, record_of

IN_PLACE = replace(RMS_NORM, outputs=(Output("x", in_place="x"),), optimized="tests.parity.planted:in_place")


def test_a_gap_between_rows_overwritten(host: HostExecutor) -> None:
    assert record_of(host, IN_PLACE, row_stride=300).ok
    spoilt = planted(IN_PLACE, "gap_overwritten")
    assert_caught(record_of(host, spoilt, row_stride=300), "or between its rows, was written to")


def test_a_result_that_is_returned_and_not_written(host: HostExecutor) -> None:
    """The caller reads where it asked for the result to be."""
    assert_caught(record_of(host, planted(RMS_NORM, "returned_alone")), "is off by inf ULP")
    assert_caught(record_of(host, planted(ADD_RMS_NORM, "returned_both_alone")), "is off by inf ULP")


@pytest.mark.parametrize(("fault", "caught"), [("no_row", False), ("no_row_unwritten", True)])
def test_an_unwritten_minus_one(host: HostExecutor, fault: str, caught: bool) -> None:
    """-1 is what integers are poisoned with at first; in the second call they are not."""
    twin = replace(
        planted(RMS_NORM, fault),
        outputs=(Output("rows", exact=True),),
        inputs=lambda config, random: Call({"x": np.zeros((3, 4), np.float32)}),
        reference="tests.parity.planted:reference_no_row",
    )
    record = try_case(twin, CORNER, host)
    assert record.ok is not caught
    if caught:
        assert_caught(record, r"rows\[0\] differs, and it must be equal, in the second call")


def test_an_unwritten_row_of_nan(host: HostExecutor) -> None:
    """So it is with NaN, and numbers."""
    changes = {"rows": "nan", "tokens": 40}  # so many that both calls have such rows
    assert record_of(host, RMS_NORM, **changes).ok
    assert_caught(record_of(host, planted(RMS_NORM, "nan_unwritten"), **changes), "in the second call")

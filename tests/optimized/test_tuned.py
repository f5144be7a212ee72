"""Which choice measurements make."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optimized import tuned
from optimized.compile.arch import ARCHS
from optimized.device import CompileOnly, Outline
from optimized.tuned import Measured, Tuned, file_name, is_invariant, packaged_directory, read, tuned_for

A, B, C = "cublas", "quack 128x192 2x1 pingpong", "quack 128x256 2x1"
SIZES = (4096, 512)


def measured(rows: int, **times: float) -> Measured:
    return Measured("linear", SIZES, rows, "bfloat16", {{"a": A, "b": B, "c": C}[name]: t for name, t in times.items()})


KNOWN = Tuned([measured(128, a=10, b=11, c=14), measured(2048, a=90, b=80, c=70), measured(8192, a=300, b=310, c=500)])


@pytest.mark.parametrize(
    ("rows", "order"),
    [
        (1, (A, B, C)),
        (128, (A, B, C)),
        (500, (A, B, C)),  # nearer to 128 by ratio
        (600, (C, B, A)),
        (4000, (C, B, A)),
        (4200, (A, B, C)),
        (1 << 20, (A, B, C)),
    ],
)
def test_the_nearest_number_of_rows_stands_for_others(rows: int, order: tuple[str, ...]) -> None:
    assert KNOWN.ranked("linear", SIZES, "bfloat16", rows) == order
    assert KNOWN.ranked("linear", SIZES, "bfloat16", rows) is KNOWN.ranked("linear", SIZES, "bfloat16", rows)


def test_an_invariant_choice_is_the_same_for_all_numbers_of_rows() -> None:
    """The one that loses least over all, though another is faster at 2048."""
    orders = {KNOWN.ranked("linear", SIZES, "bfloat16", rows, invariant=True) for rows in (1, 128, 2048, 9999)}
    assert orders == {(B, C)}
    assert not is_invariant(A) and not is_invariant("torch") and is_invariant(B) and is_invariant("flash packed")


def test_a_choice_that_was_not_measured_everywhere_is_not_invariant() -> None:
    some = Tuned([measured(128, a=10, b=11), measured(2048, a=90, b=80, c=7)])
    assert some.ranked("linear", SIZES, "bfloat16", 2048, invariant=True) == (B,)
    assert some.ranked("linear", SIZES, "bfloat16", 2048)[0] == C


@pytest.mark.parametrize(
    "asked", [("linear", (4096, 513), "bfloat16"), ("gated_linear", SIZES, "bfloat16"), ("linear", SIZES, "float16")]
)
def test_nothing_is_said_of_what_was_not_measured(asked: tuple[str, tuple[int, ...], str]) -> None:
    assert KNOWN.ranked(*asked, 128) == () == KNOWN.ranked(*asked, 128, invariant=True)


def test_of_two_measurements_the_later_counts() -> None:
    assert (
        Tuned([measured(128, a=10, b=11), measured(128, a=12, b=11)]).ranked("linear", SIZES, "bfloat16", 128)[0] == B
    )


def test_a_file_is_named_after_the_chip() -> None:
    assert file_name("NVIDIA H200") == "h200.json"
    assert file_name("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3.json"


ONE = {"operation": "linear", "sizes": [8, 8], "rows": 64, "dtype": "bfloat16", "microseconds": {C: 1, B: 2}}


def file_text(chip: str = "NVIDIA H200", versions: dict[str, str] | None = None, **measurement: Any) -> str:
    return json.dumps({"chip": chip, "versions": versions or {}, "measured": [measurement]})


def test_a_file_is_read(tmp_path: Path) -> None:
    """The control: it is not refused for another reason."""
    file = tmp_path / "h200.json"
    file.write_text(file_text(versions={"torch": "1.0"}, **ONE))
    assert read(file) == ([Measured.of_json(ONE)], {"torch": "1.0"})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        file_text(operation="linear"),
        file_text(**ONE | {"microseconds": {"a": 0}}),
        file_text(**ONE | {"microseconds": {"a": math.inf}}),
        file_text(**ONE | {"microseconds": {}}),
        file_text(**ONE | {"rows": 0}),
        file_text(chip="NVIDIA H200 NVL", **ONE),
    ],
)
def test_a_file_that_is_something_else_is_told_of(tmp_path: Path, text: str) -> None:
    file = tmp_path / "h200.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"h200\.json does not hold what `diptych tune` writes: .*; remove it"):
        read(file)
    assert read(tmp_path / "none.json") == ([], {})


@pytest.fixture
def of_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of an H200's user."""
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path))
    monkeypatch.setattr(tuned, "packaged_directory", lambda: tmp_path / "nothing")
    tuned.tuned.cache_clear()
    (tmp_path / "tuned").mkdir()
    yield tmp_path / "tuned/h200.json"
    tuned.tuned.cache_clear()


def ranked() -> tuple[str, ...]:
    device = CompileOnly(ARCHS["sm_90a"], lambda *_: None)
    return tuned_for(device, Outline((64, 8), "bfloat16", device)).ranked("linear", (8, 8), "bfloat16", 64)


def test_what_a_user_has_measured_comes_first(of_user: Path, caplog: pytest.LogCaptureFixture) -> None:
    of_user.write_text(file_text(versions=tuned.installed_versions(), **ONE))
    assert ranked() == (C, B)
    assert caplog.text == ""


def test_what_other_versions_were_measured_with_is_used_and_told(
    of_user: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_user.write_text(file_text(versions=tuned.installed_versions() | {"torch": "1.0"}, **ONE))
    assert ranked() == ranked() == (C, B)
    (told,) = caplog.messages
    assert re.search(r"h200\.json was measured with torch 1\.0 \(now \d.*\): `diptych tune` measures", told)


def test_a_file_that_cannot_be_read_is_no_reason_not_to_serve(of_user: Path, caplog: pytest.LogCaptureFixture) -> None:
    of_user.mkdir()
    assert ranked() == ()
    assert "what `diptych tune` has measured here is not used" in caplog.text


def test_files_of_the_package_can_be_read() -> None:
    for file in packaged_directory().glob("*.json"):
        assert file.name == file_name(json.loads(file.read_text())["chip"])
        assert len(read(file)[0]) > 10

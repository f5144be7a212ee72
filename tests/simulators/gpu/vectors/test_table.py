"""The tables of docs/simulator.md are those that the probes give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.simulators.gpu.vectors.probes import FAMILIES, UNVERIFIED
from tests.simulators.gpu.vectors.store import load
from tests.simulators.gpu.vectors.table import BEGIN, END, H200_ANSWERS, main, tables, with_tables

DOCUMENT = Path(__file__).parents[4] / "docs/simulator.md"


def test_the_document_has_them() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_tables(text, load(H200_ANSWERS)), (
        "python -m tests.simulators.gpu.vectors.table --write docs/simulator.md"
    )


def test_every_probe_is_counted_once() -> None:
    counts = [
        int(part.split(" forms")[0].rsplit(" ", 1)[-1]) for part in tables(load(H200_ANSWERS)).split("**")[::2][1:4]
    ]
    assert sum(counts[:2]) == sum(len(probes) for probes in FAMILIES.values()) and counts[2] == len(UNVERIFIED)


def test_another_answer_is_another_table() -> None:
    recording = load(H200_ANSWERS)
    name = "rcp.approx.f32"
    (bits,) = recording.answers[name]
    further = replace(recording, answers={**recording.answers, name: [bits ^ np.uint32(1)]})
    assert tables(further) != tables(recording)


def test_a_document_without_marks_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "document.md"
    file.write_text(f"{END} {BEGIN}")
    with pytest.raises(ValueError, match="no marks"):
        main(["--write", str(file)])
    file.write_text(f"before {BEGIN} old {END} after")
    assert main(["--write", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert text.startswith("before <!--") and text.endswith("--> after") and " old " not in text

"""`diptych bench simulator` measures the launches of a twin, checked and not, and says where the time goes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine import cli
from parity.bench import simulator

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")


def test_records(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path_factory.getbasetemp() / "diptych"))
    monkeypatch.setattr(simulator, "SIZES", (("rms_norm", {"tokens": 3, "hidden": 64}), *simulator.SIZES[2:4]))
    records, profile = tmp_path / "records.json", tmp_path / "profile.md"
    cores = os.sched_getaffinity(0)
    options = ["--repeat", "1", "--json", str(records), "--profile", str(profile)]
    assert cli.main(["bench", "simulator", "rms_norm", *options]) == 0
    assert os.sched_getaffinity(0) == cores
    plain, checked = json.loads(records.read_text())
    assert (plain["operation"], plain["checks"], checked["checks"]) == ("rms_norm", "none", "race, uninitialised")
    assert plain["thread_instructions"] == checked["thread_instructions"] > 3 * 64
    assert plain["per_second"] == pytest.approx(plain["thread_instructions"] / plain["seconds"])
    rows = [line.split("|")[1:-1] for line in profile.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == simulator.SHOWN_FUNCTIONS
    shares = [float(share.strip(" %")) for *_, share in rows]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 100
    assert "rms_norm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"), [(["rms_nrm"], "did you mean 'rms_norm'?"), (["rope"], "known are gated_activation")]
)
def test_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "simulator", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())

"""The measurements measure: the same work on both sides, counted rightly. Their figures are not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import cli
from engine.usage import UsageError
from parity.bench import command, serve
from parity.bench.workload import workload


def test_workloads() -> None:
    even = workload("even", 6, 100, prompt=8, output=4)
    assert {(len(one.prompt_token_ids), one.num_output) for one in even} == {(8, 4)}
    mixed = workload("mixed", 8, 100, prompt=80, output=40)
    assert sorted({len(one.prompt_token_ids) for one in mixed}) == [27, 42, 57, 72, 87, 102, 117, 132]
    assert sum(one.num_output for one in mixed) == pytest.approx(8 * 40, abs=8)
    assert workload("mixed", 8, 100, prompt=80, output=40) == mixed, "the same on both sides and in every run"
    assert all(0 <= token_id < 100 for one in mixed for token_id in one.prompt_token_ids)
    with pytest.raises(ValueError, match="'odd' is unknown"):
        workload("odd", 1, 100, prompt=8, output=4)


def test_serve_measures_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    options = "dense --concurrency 2 --workload mixed --rounds 1 --repeat 1 --prompt 6 --output 4 --json".split()
    assert serve.main([*options, str(file)]) == 0
    [record] = json.loads(file.read_text())
    assert (record["concurrency"], record["requests"], record["dtype"]) == (2, 2, "float32")
    assert record["ratio"] == pytest.approx(record["ours"] / record["transformers"])


def test_engine_overhead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "records.json"
    assert cli.main(["bench", "engine", "--running", "2", "--steps", "3", "--json", str(file)]) == 0
    steps, few, many = json.loads(file.read_text())
    assert steps["running"] == 2 and few["cached_blocks"] < many["cached_blocks"] == 100_000
    assert "engine overhead" in capsys.readouterr().out


def test_an_unknown_measurement_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="unknown measurement 'serv'; known are serve, kernels"):
        command.main(["serv"])
    assert command.main([]) == 2
    assert "usage: diptych bench NAME" in capsys.readouterr().out

"""The page of a run needs no network, shows what there is, and escapes it."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from math import inf
from pathlib import Path

import numpy as np
import pytest

from engine import cli
from parity import cases
from parity.commands import on_device
from parity.judge import Judgement
from parity.record import Record, Status
from parity.report.chart import chart
from parity.report.histogram import END, STEPS, Histogram
from parity.report.html import page
from parity.report.tally import Tally
from tests.parity.host import CORNER, RMS_NORM, ROUTER, Here, HostExecutor

VOID = {"meta", "link", "br", "img", "line"}
MAY_STAY_OPEN = {"tr", "td", "th", "dt", "dd", "thead", "tbody"}


class Checker(HTMLParser):
    """Tags that are opened are closed, in order; what HTML lets stay open ends with its parent."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") or name in ("src", "srcset") for name, _ in attrs), (tag, attrs)
        assert all(value and value.startswith("#") for name, value in attrs if name == "href"), attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        while self.open[-1] != tag and self.open[-1] in MAY_STAY_OPEN:
            self.open.pop()
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += f" {data}"


def text_of(html: str) -> str:
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    return " ".join(checker.text.split())


def judged(errors: list[float], bound: float = 1.0) -> Judgement:
    return Judgement("out", max(errors), bound, 0, (0,), np.array(errors), np.array(errors) > bound, "float32")


def test_a_page_of_a_run(host: HostExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "gpu", lambda seconds: Here(host))
    monkeypatch.setattr(cases, "names", lambda: ["rms_norm", "router_top_k"])
    monkeypatch.setattr(cases, "twin_named", {"rms_norm": RMS_NORM, "router_top_k": ROUTER}.__getitem__)
    bench, file = tmp_path / "bench.json", tmp_path / "page.html"
    measured = {"twin": "rms_norm", "config": {"tokens": 4096}, "arch": "sm_90a", "microseconds": 12.5}
    bench.write_text(json.dumps([measured | {"gbytes_per_second": 4012.3, "share_of_limit": 0.93}]))
    assert cli.main(["parity", "--on", "device", "--search", "0", "--html", str(file), "--bench", str(bench)]) == 0
    html = file.read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script|@import|url\(", html)
    text = text_of(html)
    assert "The panels agree in 10 cases of 2 twins." in text
    for expected in ("device sm_90a", "93%", "12.50 us", "4,012 GB/s", "tokens 4096", "hidden 256"):
        assert expected in text, expected
    assert "ULP, of 13,824 elements" in text  # of bfloat16: two calls of three corners of 9 x 256
    assert html.count("<svg") == 3  # two dtypes of rms_norm, the router's weights
    assert "Root-mean-square normalisation" in text and "one_wrong_lane" in text


def test_compiled_cases_say_that_nothing_was_computed() -> None:
    record = Record(
        "rms_norm", "compile", "sm_100a", None, CORNER, 1, "ok", registers=33, shared_bytes=8, local_bytes=16
    )
    text = text_of(page([RMS_NORM], [Tally("rms_norm", "compile", "sm_100a", 1, [record])], {}, []))
    assert "Nothing was computed: these cases were compiled, not run." in text
    assert "compiled only" in text and "not measured" in text
    assert "33" in text and "8 B" in text and "16 B" in text


def test_everything_is_escaped() -> None:
    bad = "<script>alert('x')</script>&"
    config = {bad: bad, "tokens": 1}
    fail = Record("rms_norm", "device", "sm_90a", bad, config, 1, "fail", inf, 1.0, 3, bad, reason=bad)
    skip = Record("rms_norm", "device", "sm_90a", bad, config, 1, "skipped", reason=bad)
    measured = {"twin": "rms_norm", "config": config, "arch": bad, "microseconds": 1, "gbytes_per_second": 2}
    html = page(
        [RMS_NORM],
        [Tally("rms_norm", "device", "sm_90a", 2, [fail, skip])],
        {("rms_norm", "device", "sm_90a", bad): Histogram()},
        [measured | {"share_of_limit": 0.5}],
    )
    assert "<script" not in html
    text = text_of(html)
    assert text.count("alert(") >= 9
    assert "Of 2 cases: 1 failed." in text and "inf of 1 ULP" in text
    assert "diptych parity rms_norm --on device --case" in text


def test_sources_are_whole_and_numbered_by_the_page() -> None:
    html = page([RMS_NORM], [Tally("rms_norm", "device", "sm_90a", 1, [])], {}, [])
    lines = sum(len(Path(name).read_text(encoding="utf-8").splitlines()) for name in _files())
    assert html.count('<span class="line">') == lines


def _files() -> list[Path]:
    root = Path(__file__).parents[2]
    return [root / "reference/kernels/rms_norm.py", root / "tests/parity/planted.py"]


def test_a_histogram_counts_twentieths_of_an_ulp() -> None:
    histogram = Histogram()
    histogram.add(judged([0.0, 0.04, 0.06, 0.99, 3.01]))
    histogram.add(judged([inf, 1e30, float(END)], bound=2.5))
    assert histogram.counts[[0, 1, 19, 60, STEPS * END]].tolist() == [2, 1, 1, 1, 3]
    assert histogram.counts.sum() == 8 and histogram.bound == 2.5
    assert histogram.num_shown == STEPS * END + 1


def test_a_histogram_of_a_bound_without_end_is_drawn() -> None:
    histogram = Histogram()
    histogram.add(judged([0.1, 0.2], bound=inf))
    assert histogram.num_shown == STEPS * END + 1
    assert chart("title", histogram).bound.at > 0


def test_histograms_add_up() -> None:
    whole, part = Histogram(), Histogram()
    part.add(judged([0.0, 3.01], bound=2.5))
    for _ in range(2):
        whole.add_all(part)
    assert whole.bound == 2.5 and whole.counts.sum() == 4 and whole.counts[60] == whole.beyond.sum() == 2


@pytest.mark.parametrize(
    ("total", "records", "told"),
    [
        (0, [], "Of 0 cases: nothing was tried."),
        (2, [], "Of 2 cases: 2 have no record."),
        (1, ["skipped"], "Of 1 cases: nothing was tried."),
        (2, ["fail"], "Of 2 cases: 1 failed, 1 have no record."),
    ],
)
def test_a_page_of_too_little_does_not_say_that_all_holds(total: int, records: list[Status], told: str) -> None:
    tally = Tally("rms_norm", "device", "sm_90a", total)
    tally.records += [Record("rms_norm", "device", "sm_90a", None, CORNER, 1, status) for status in records]
    assert told in text_of(page([RMS_NORM], [tally], {}, []))


def test_a_chart_shows_the_bound_and_every_bar_that_is_not_empty() -> None:
    histogram = Histogram()
    histogram.add(judged([0.0] * 100_000 + [0.47, 1.02]))
    shown = chart("title", histogram)
    assert [bar.label for bar in shown.bars] == [
        "0.00 to 0.05 ULP: 100,000 elements",
        "0.45 to 0.50 ULP: 1 element",
        "1.00 to 1.05 ULP: 1 element",
        "1.00 to 1.05 ULP: 1 element beyond the bound",
    ]
    assert [bar.is_beyond for bar in shown.bars] == [False, False, False, True]
    assert all(0 < bar.height <= shown.height and 0 <= bar.x < shown.width for bar in shown.bars)
    assert shown.bars[0].height > 5 * shown.bars[1].height
    assert [mark.label for mark in shown.counts] == ["1", "100", "10,000"]
    assert [mark.label for mark in shown.ulps] == ["0", "1"]
    assert 0 < shown.bound.at <= shown.width and shown.elements == 100_002


def test_what_is_beyond_the_bound_of_its_row_is_red_whatever_other_rows_may() -> None:
    histogram = Histogram()
    histogram.add(judged([0.2, 0.72, 0.73], bound=0.5))
    histogram.add(judged([0.71, 3.5], bound=4.0))
    shown = chart("title", histogram)
    assert [bar.label for bar in shown.bars if bar.is_beyond] == ["0.70 to 0.75 ULP: 2 elements beyond the bound"]
    assert [bar.label for bar in shown.bars if not bar.is_beyond][1] == "0.70 to 0.75 ULP: 3 elements"
    assert shown.bound.label == "largest bound 4"


def test_a_chart_of_nothing() -> None:
    assert chart("title", Histogram()).bars == []


MEASURED = {
    "twin": "rms_norm",
    "config": {},
    "arch": "sm_90a",
    "microseconds": 1,
    "gbytes_per_second": 2,
    "share_of_limit": 0.5,
}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        '[{"twin": "rms_norm"}]',
        *(
            json.dumps([MEASURED | wrong])
            for wrong in (
                {"share_of_limit": "y"},
                {"share_of_limit": None},
                {"microseconds": -1},
                {"gbytes_per_second": True},
                {"gbytes_per_second": math.nan},
                {"config": [1]},
                {"twin": 3},
            )
        ),
    ],
)
def test_measurements_that_are_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = tmp_path / "bench.json"
    bench.write_text(text)
    assert cli.main(["parity", "--html", str(tmp_path / "page.html"), "--bench", str(bench)]) == 2
    assert "bench.json" in capsys.readouterr().err

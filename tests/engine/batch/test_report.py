"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from engine.batch.answers import AnsweredLine
from engine.batch.report import Report
from engine.batch.resume import Kept


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def line(status: int = 200, num_tokens: int = 10) -> AnsweredLine:
    return AnsweredLine(b"{}\n", status, num_tokens, input_end=50)


def test_a_line_now_and_then() -> None:
    shown, clock = io.StringIO(), Clock()
    report = Report(Console(file=shown, width=80), Kept(num_lines=3, num_failed=1), 1000, every=30, clock=clock)
    clock.seconds += 1000  # the model is loaded
    with report:
        for status in (200, 200, 400, 500, 200):
            clock.seconds += 10
            report.written(line(status, 10 if status == 200 else 0))
    # After 30 seconds and 3 lines; what an earlier run left has no part in the rate.
    assert shown.getvalue() == "6 lines, 2 failed, 1 tokens/s\n"
    assert report.summary() == "8 lines, 3 failed, 1 tokens/s"


def test_a_bar_on_a_terminal() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100)
    with Report(console, Kept(), 100, every=0) as report:
        report.written(line())
    assert "50%" in shown.getvalue()
    assert "1 lines, 0 failed" in shown.getvalue()


def test_without_tokens_there_is_no_rate() -> None:
    assert Report(Console(file=io.StringIO()), Kept(num_lines=1234), None).summary() == "1,234 lines, 0 failed"

"""One case with one executor: its record, and how its errors are spread."""

from __future__ import annotations

from parity.executors.executor import Executor
from parity.harness import try_case
from parity.judge import Judgement
from parity.record import Record
from parity.report.histogram import Histogram, Histograms
from parity.twin import Call, Config, Twin

Spread = dict[str, Histogram]  # by the dtype of the outputs


def tried(executor: Executor, twin: Twin, config: Config) -> tuple[Record, Spread]:
    """Try it, in this process."""
    spread: Spread = {}

    def watch(_: Call, judgements: list[Judgement]) -> None:
        for one in judgements:
            if one.bound > 0:
                spread.setdefault(one.dtype, Histogram()).add(one)

    return try_case(twin, config, executor, watch), spread


def gathered(record: Record, spread: Spread, histograms: Histograms) -> Record:
    """The record; the spread is added to those of its twin."""
    for dtype, histogram in spread.items():
        histograms.setdefault((record.twin, record.executor, record.arch, dtype), Histogram()).add_all(histogram)
    return record

"""`diptych bench simulator`: thread-instructions a second on one core, for a few twins, with and without checks."""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from engine.usage import UsageError
from optimized.compile.arch import SM_90A
from parity import cases
from parity.commands.choose import configuration, need_compiler, one_of
from parity.commands.on_simulator import need_linker
from parity.executors.simulate.executor import SimulateExecutor
from parity.harness import seed_of
from parity.judge import expectations
from simulators.gpu.checks.races import Races
from simulators.gpu.checks.uninitialised import UninitialisedReads
from simulators.gpu.chip import CHIPS
from simulators.gpu.gpu import Gpu, WatcherFactory
from simulators.gpu.launch import Launch
from simulators.gpu.ptx.module import Module
from simulators.gpu.report import Report

# An elementwise kernel, a norm, the fused one, and one with a barrier of the whole grid; then what a decode step calls.
SIZES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gated_activation", {"tokens": 256, "intermediate": 3072}),
    ("rms_norm", {"tokens": 256, "hidden": 4096}),
    ("qk_norm_rope_kv_write", {"tokens": 77, "heads": 32, "kv_heads": 8, "head_dim": 128, "kind": "prompts"}),
    ("moe_dispatch", {"tokens": 300, "hidden": 768}),
    ("rms_norm", {"tokens": 1, "hidden": 4096}),
)
CHECKS: dict[str, tuple[WatcherFactory, ...]] = {"none": (), "race, uninitialised": (Races, UninitialisedReads)}
SHOWN_FUNCTIONS = 14
PROFILE_HEAD = """# Where the simulator's time goes

One launch a kernel under cProfile, each function's own time; written by `diptych bench simulator --profile FILE`"""


@dataclass(frozen=True)
class Speed:
    """Of one kernel's launches, all alike."""

    operation: str
    config: Mapping[str, Any]
    checks: str
    thread_instructions: int  # of a launch
    seconds: float  # a launch, median

    @property
    def per_second(self) -> float:
        return self.thread_instructions / self.seconds


class _Recorded(Gpu):
    """Keeps its launches' reports."""

    def __init__(self, watchers: Sequence[WatcherFactory], profile: cProfile.Profile | None = None) -> None:
        super().__init__(CHIPS[SM_90A.name], watchers=watchers)
        self.reports: list[Report] = []
        self._profile = profile

    def launch(self, module: Module, launch: Launch) -> Report:
        if self._profile is not None and self.reports:  # the first launch decodes the kernel
            self._profile.enable()
        try:
            report = super().launch(module, launch)
        finally:
            if self._profile is not None:
                self._profile.disable()
        self.reports.append(report)
        return report


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, write JSON and profiles. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    need_compiler()
    need_linker()
    known = dict.fromkeys(name for name, _ in SIZES)
    chosen = [one_of("measured twin", name, known) for name in options.operation] or list(known)
    measured, profiles = [], []
    with _on_one_core():
        for name, size in SIZES:
            if name in chosen:
                for checks in CHECKS:
                    measured.append(_measure(name, size, checks, options.repeat))
                if options.profile is not None:
                    profiles.append(_profiled(name, size))
    Console().print(_table(measured))
    try:
        if options.json is not None:
            records = [asdict(one) | {"per_second": one.per_second} for one in measured]
            options.json.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
        if options.profile is not None:
            options.profile.write_text("\n".join([f"{PROFILE_HEAD}, {time.strftime('%Y-%m-%d')}.\n", *profiles]))
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from error
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "diptych bench simulator", description="Thread-instructions a second of the GPU simulator, on one core."
    )
    parser.add_argument("operation", nargs="*", metavar="OPERATION", help="a twin (default: all that are measured)")
    parser.add_argument("--repeat", type=_count, default=5, metavar="N", help="runs, of two launches each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write where the time goes, as Markdown")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Inside, this thread stays on one, where the system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _run(gpu: _Recorded, name: str, size: Mapping[str, Any], repeat: int) -> None:
    twin = cases.twin_named(name)
    config = configuration(twin, json.dumps(size))
    call = twin.inputs(config, np.random.default_rng(seed_of(config)))
    executor, expected = SimulateExecutor(SM_90A, gpu=gpu), expectations(twin, call)
    for _ in range(repeat):
        executor.run(twin, call, expected)


def _measure(name: str, size: Mapping[str, Any], checks: str, repeat: int) -> Speed:
    gpu = _Recorded(CHECKS[checks])
    _run(gpu, name, size, repeat)
    seconds = statistics.median(report.seconds for report in gpu.reports)
    return Speed(name, size, checks, gpu.reports[0].thread_instructions, seconds)


def _profiled(name: str, size: Mapping[str, Any]) -> str:
    """A launch's functions with the most time of their own, as Markdown."""
    profile = cProfile.Profile()
    gpu = _Recorded((), profile)
    _run(gpu, name, size, 1)
    stats = pstats.Stats(profile, stream=StringIO())
    found: dict[tuple[str, int, str], Any] = stats.stats  # type: ignore[attr-defined] # by file, line and name
    total = sum(own for _, _, own, _, _ in found.values())
    lines = [f"## `{name}` {json.dumps(dict(size))}", "", "| function | calls | share of the time |", "|---|---|---|"]
    by_own_time = sorted(found.items(), key=lambda item: -item[1][2])
    for (file, line, function), (_, calls, own, _, _) in by_own_time[:SHOWN_FUNCTIONS]:
        where = "" if file == "~" else f" ({Path(file).parent.name}/{Path(file).name}:{line})"
        lines.append(f"| `{function}`{where} | {calls} | {own / total:.1%} |")
    return "\n".join([*lines, ""])


def _table(measured: Sequence[Speed]) -> Table:
    table = Table("operation", "size", "checks", title="thread-instructions a second, one core")
    for name in ("thread-instructions", "ms a launch", "a second"):
        table.add_column(name, justify="right")
    for one in measured:
        size = ", ".join(f"{key} {value}" for key, value in one.config.items())
        numbers = f"{one.thread_instructions:,}", f"{1e3 * one.seconds:.1f}", f"{one.per_second:.2g}"
        table.add_row(one.operation, size, one.checks, *numbers)
    return table

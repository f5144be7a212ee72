"""Cases on simulated GPUs, in several processes at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from engine.usage import UsageError
from optimized.compile.arch import arch_named
from parity import cases
from parity.commands.tried import Spread, gathered, tried
from parity.commands.workers import Case, died, each_case
from parity.record import Record
from parity.report.histogram import Histograms

if TYPE_CHECKING:
    from parity.executors.simulate.executor import SimulateExecutor


def need_linker() -> None:
    """Errors: UsageError where what links compiled objects is not installed."""
    if find_spec("llvmlite") is None:
        raise UsageError("simulate needs llvmlite; pip install 'diptych[compile]' brings it")


def simulate_case(case: Case) -> tuple[Record, Spread]:
    """Try it in this process."""
    return tried(_executor(case.arch), cases.twin_named(case.twin), case.config)


def simulate_cases(of: Sequence[Case], jobs: int, histograms: Histograms) -> Iterator[Record]:
    """A record of each case, as they become ready; how the errors are spread is added to `histograms`."""
    of_each = each_case(simulate_case, of, jobs, lambda case: (died(case, "the process that simulated it died"), {}))
    for record, spread in of_each:
        yield gathered(record, spread, histograms)


@cache
def _executor(arch: str) -> SimulateExecutor:
    """One for all cases of this process: what is compiled, parsed and linked stays."""
    from parity.executors.simulate.executor import SimulateExecutor

    return SimulateExecutor(arch_named(arch))

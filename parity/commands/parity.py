"""`diptych parity`: try the cases of twins, and say whether both panels agree."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from engine.usage import UsageError
from optimized.compile.arch import ARCHS
from parity.commands.choose import configuration, listed, need_compiler, twins
from parity.record import Record, write
from parity.report.histogram import Histograms
from parity.report.table import following, print_end
from parity.report.tally import Tally
from parity.twin import Config, Twin

EXECUTORS = ("compile", "device")
SEARCHED = 20
EPILOG = """\
compile builds what host code would launch, for each --arch, and holds the machine code to its promises; it needs no
GPU. device runs each case twice on the GPU at hand, and holds every element to the reference. The exit code is 0 if
all cases hold, 1 if one fails, 2 if the command line is wrong. Compiled kernels are kept in $DIPTYCH_CACHE, or else
in ~/.cache/diptych."""


@dataclass(frozen=True)
class Plan:
    """What will be tried."""

    configs: dict[str, list[Config]]  # by the name of their twin
    twins: dict[str, Twin]
    archs: list[str]  # to compile for
    device: Any  # what runs on the GPU, or None

    def tallies(self) -> list[Tally]:
        places = [("compile", arch) for arch in self.archs]
        places += [(self.device.name, self.device.arch.name)] if self.device else []
        return [Tally(name, *place, len(self.configs[name])) for name in self.twins for place in places]


def main(arguments: Sequence[str]) -> int:
    """Try, show, write. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    need_compiler()
    benchmarks = _benchmarks(options)
    for file in (options.json, options.html):
        if file is not None and not file.resolve().parent.is_dir():
            raise UsageError(f"{file}: there is no such folder")
    plan = _plan(options)
    tallies = plan.tallies()
    histograms: Histograms = {}
    console = Console()
    with following(console, tallies) as tell:
        rows = {(one.twin, one.executor, one.arch): one for one in tallies}
        for record in _records(plan, options.jobs, histograms):
            row = rows[record.twin, record.executor, record.arch]
            row.records.append(record)
            tell(row)
    _in_order(plan, tallies)
    print_end(console, tallies)
    if options.json is not None:
        write((record for tally in tallies for record in tally.records), options.json)
    if options.html is not None:
        from parity.report.html import page

        text = page(list(plan.twins.values()), tallies, histograms, benchmarks)
        options.html.write_text(text, encoding="utf-8")
    return int(any(tally.failures for tally in tallies))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "diptych parity",
        description="Try the cases of twins, and say whether the optimized panel gives what the reference says.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="twins (default: all)")
    executors = ",".join(EXECUTORS)
    parser.add_argument("--on", metavar=executors, help="(default: compile, and device where there is a GPU)")
    parser.add_argument("--arch", metavar=",".join(ARCHS), help="what compile compiles for (default: all of these)")
    parser.add_argument(
        "--search", type=_count, metavar="N", help=f"configurations beside corners (default {SEARCHED})"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="which configurations are searched (default 0)")
    parser.add_argument("--case", metavar="JSON", help="one configuration, of one twin, in place of all")
    parser.add_argument("--jobs", type=_positive, metavar="N", help="processes that compile (default: one a core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a list of records, one a case")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page to look at")
    parser.add_argument("--bench", type=Path, metavar="FILE", help="measurements that the page shows, as JSON")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _plan(options: argparse.Namespace) -> Plan:
    from parity.harness import configurations

    chosen = {twin.name: twin for twin in twins(options.names)}
    executors = None if options.on is None else listed("executor", options.on, EXECUTORS)
    archs = list(ARCHS) if options.arch is None else listed("architecture", options.arch, ARCHS)
    if executors is not None and "compile" not in executors:
        if options.arch is not None:
            raise UsageError("--arch is for compile; a device is what it is")
        archs = []
    device = _device(executors)
    if options.case is None:
        searched = SEARCHED if options.search is None else options.search
        configs = {name: list(configurations(one, searched, options.seed or 0)) for name, one in chosen.items()}
        return Plan(configs, chosen, archs, device)
    if len(options.names) != 1:
        raise UsageError("--case is a configuration of one twin: name it")
    if options.search is not None or options.seed is not None:
        raise UsageError("with --case nothing is searched: leave out --search and --seed")
    return Plan({name: [configuration(one, options.case)] for name, one in chosen.items()}, chosen, archs, device)


def _device(executors: Sequence[str] | None) -> Any:
    """What runs on the GPU; None if that is not asked for, or is left open and there is none."""
    if executors is not None and "device" not in executors:
        return None
    from parity.commands import on_device

    try:
        return on_device.gpu()
    except UsageError:
        if executors is None:
            return None
        raise


def _records(plan: Plan, jobs: int | None, histograms: Histograms) -> Iterator[Record]:
    """Compiled first: what runs on the GPU then finds its kernels built."""
    from parity.commands.on_device import try_on_device
    from parity.commands.workers import Case, compile_cases

    tried = [
        Case(name, "compile", arch, config)
        for name, configs in plan.configs.items()
        for arch in plan.archs
        for config in configs
    ]
    if tried:
        yield from compile_cases(tried, min(jobs or os.cpu_count() or 1, len(tried)))
    if plan.device is not None:
        cases = [(twin, config) for name, twin in plan.twins.items() for config in plan.configs[name]]
        yield from try_on_device(plan.device, cases, histograms)


def _in_order(plan: Plan, tallies: Sequence[Tally]) -> None:
    """Records come as processes have them ready; they are reported in the order of the configurations."""
    for tally in tallies:
        order = {json.dumps(config, sort_keys=True): number for number, config in enumerate(plan.configs[tally.twin])}
        tally.records.sort(key=lambda record: order[json.dumps(record.config, sort_keys=True)])


def _benchmarks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A list of {twin, config, arch, microseconds, gbytes_per_second, share_of_limit}."""
    file = options.bench
    if file is None:
        return []
    if options.html is None:
        raise UsageError("--bench is shown by --html alone")
    needed = ("twin", "config", "arch", "microseconds", "gbytes_per_second", "share_of_limit")
    try:
        measured = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    if not isinstance(measured, list) or not all(
        isinstance(one, dict) and set(needed) <= one.keys() for one in measured
    ):
        raise UsageError(f"{file} must be a list of objects that have {', '.join(needed)}")
    return measured

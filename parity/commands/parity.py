"""`diptych parity`: try the cases of twins, and say whether both panels agree."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from engine.names import load_function
from engine.usage import UsageError
from optimized.compile.arch import ARCHS
from parity.commands import on_device
from parity.commands.choose import configuration, inputs_of, listed, need_compiler, refused, twins
from parity.commands.on_device import SECONDS, Apart
from parity.record import Record, write
from parity.report.histogram import Histograms
from parity.report.table import following, print_end
from parity.report.tally import Tally, shortcoming
from parity.twin import Config, Twin

EXECUTORS = ("compile", "simulate", "device")
SEARCHED = 20
MEASURED: dict[str, Any] = {  # what a measurement says, and as what
    "twin": str,
    "config": dict,
    "arch": str,
    "microseconds": (int, float),
    "gbytes_per_second": (int, float),
    "share_of_limit": (int, float),
}
EPILOG = """\
compile builds what host code would launch, for each --arch, and holds the machine code to its promises; it needs no
GPU. device runs each case twice on the GPU at hand, and holds every element to the reference. simulate does the same on
a simulated GPU of each --arch, with the PTX and the host code that were compiled. `diptych parity model MODEL` holds
whole models instead of twins. The exit code is 0 if all cases hold,
1 if one does not, 2 if the command line is wrong. Compiled kernels are kept in $DIPTYCH_CACHE, or else in
~/.cache/diptych."""


@dataclass(frozen=True)
class Plan:
    """What will be tried."""

    configs: dict[str, list[Config]]  # by the name of their twin
    twins: dict[str, Twin]
    archs: list[str]  # to compile for
    simulated: list[str]  # architectures whose chips are simulated
    device: Apart | None  # what runs on the GPU

    def close(self) -> None:
        if self.device is not None:
            self.device.close()

    def tallies(self) -> list[Tally]:
        places = [("compile", arch) for arch in self.archs] + [("simulate", arch) for arch in self.simulated]
        places += [(self.device.name, self.device.arch.name)] if self.device else []
        return [Tally(name, *place, len(self.configs[name])) for name in self.twins for place in places]


def main(arguments: Sequence[str]) -> int:
    """Try, show, write; with `model` first, whole models. Errors: UsageError."""
    if arguments[:1] == ["model"]:
        code: int = load_function("parity.commands.model:main")(arguments[1:])
        return code
    options = _parser().parse_args(arguments)
    need_compiler()
    benchmarks = _benchmarks(options)
    plan = _plan(options)
    with closing(plan):
        for file in (options.json, options.html):
            _check_writable(file)
        tallies = plan.tallies()
        histograms: Histograms = {}
        console = Console()
        try:
            with following(console, tallies) as tell:
                rows = {(one.twin, one.executor, one.arch): one for one in tallies}
                for record in _records(plan, options.jobs, histograms):
                    row = rows[record.twin, record.executor, record.arch]
                    row.records.append(record)
                    tell(row)
        finally:  # what is known when a person has seen enough is worth keeping
            _in_order(plan, tallies)
            _write(options, plan, tallies, histograms, benchmarks)
    print_end(console, tallies)
    return int(shortcoming(tallies) is not None)


def _check_writable(file: Path | None) -> None:
    """Before the work, not after it. What is in the file stays."""
    if file is not None:
        try:
            file.open("a").close()
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}") from error


def _write(
    options: argparse.Namespace,
    plan: Plan,
    tallies: Sequence[Tally],
    histograms: Histograms,
    benchmarks: Sequence[dict[str, Any]],
) -> None:
    if options.json is not None:
        write((record for tally in tallies for record in tally.records), options.json)
    if options.html is not None:
        from parity.report.html import page

        text = page(list(plan.twins.values()), tallies, histograms, benchmarks)
        options.html.write_text(text, encoding="utf-8")


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
    parser.add_argument("--arch", metavar=",".join(ARCHS), help="for compile and simulate (default: all of these)")
    parser.add_argument(
        "--search", type=_count, metavar="N", help=f"configurations beside corners (default {SEARCHED})"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="which configurations are searched (default 0)")
    parser.add_argument("--case", metavar="JSON", help="one configuration, of one twin, in place of all")
    parser.add_argument("--jobs", type=_positive, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--timeout", type=_positive, metavar="S", help=f"seconds a case may take on a device (default {SECONDS:g})"
    )
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
    from parity.commands import on_simulator
    from parity.harness import configurations

    chosen = {twin.name: twin for twin in twins(options.names)}
    executors = None if options.on is None else listed("executor", options.on, EXECUTORS)
    archs = list(ARCHS) if options.arch is None else listed("architecture", options.arch, ARCHS)
    if executors is not None and not {"compile", "simulate"} & set(executors) and options.arch is not None:
        raise UsageError("--arch is for compile and simulate; a device is what it is")
    compiled = archs if executors is None or "compile" in executors else []
    simulated = archs if executors is not None and "simulate" in executors else []
    if simulated:
        on_simulator.need_linker()
    if options.case is None:
        searched = SEARCHED if options.search is None else options.search
        configs = {name: list(configurations(one, searched, options.seed or 0)) for name, one in chosen.items()}
        return Plan(configs, chosen, compiled, simulated, _device(executors, options.timeout))
    if len(options.names) != 1:
        raise UsageError("--case is a configuration of one twin: name it")
    if options.search is not None or options.seed is not None:
        raise UsageError("with --case nothing is searched: leave out --search and --seed")
    configs = {name: [_taken(one, options.case)] for name, one in chosen.items()}
    return Plan(configs, chosen, compiled, simulated, _device(executors, options.timeout))


def _taken(twin: Twin, text: str) -> Config:
    """A configuration that the reference takes: what it refuses is no failure of the optimized panel."""
    config = configuration(twin, text)
    with refused(twin, config):
        call = inputs_of(twin, config)
        load_function(twin.reference)(*call.arrays.values(), **call.constants)
    return config


def _device(executors: Sequence[str] | None, seconds: int | None) -> Apart | None:
    """What runs on the GPU; None if that is not asked for, or is left open and there is none."""
    if executors is not None and "device" not in executors:
        return None
    try:
        return on_device.gpu(seconds or SECONDS)
    except UsageError:
        if executors is None:
            return None
        raise


def _records(plan: Plan, jobs: int | None, histograms: Histograms) -> Iterator[Record]:
    """Compiled first: what runs on a GPU then finds its kernels built."""
    from parity.commands import on_simulator, workers

    def cases_of(executor: str, archs: Sequence[str]) -> list[workers.Case]:
        return [
            workers.Case(name, executor, arch, config)
            for name, configs in plan.configs.items()
            for arch in archs
            for config in configs
        ]

    cores = jobs or os.cpu_count() or 1
    if tried := cases_of("compile", plan.archs):
        yield from workers.compile_cases(tried, min(cores, len(tried)))
    if tried := cases_of("simulate", plan.simulated):
        yield from on_simulator.simulate_cases(tried, min(cores, len(tried)), histograms)
    if plan.device is not None:
        cases = [(twin, config) for name, twin in plan.twins.items() for config in plan.configs[name]]
        yield from on_device.try_on_device(plan.device, cases, histograms)


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
    try:
        measured = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    kinds = ", ".join(MEASURED)
    if not isinstance(measured, list) or not all(
        isinstance(one, dict) and MEASURED.keys() <= one.keys() for one in measured
    ):
        raise UsageError(f"{file} must be a list of objects that have {kinds}")
    for number, one in enumerate(measured):
        for name, kind in MEASURED.items():
            value = one[name]
            if not isinstance(value, kind) or (kind is not str and kind is not dict and not _is_amount(value)):
                raise UsageError(f"{file}: {name} of measurement {number} cannot be {json.dumps(value)}")
    return measured


def _is_amount(value: float) -> bool:
    return not isinstance(value, bool) and math.isfinite(value) and value >= 0

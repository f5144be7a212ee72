"""`diptych simulate FILE.ptx`: one launch of a kernel of any PTX text, on a simulated GPU."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from engine.usage import UsageError
from parity.report import simulation
from simulators.gpu.arguments import ArgumentError, Arguments, read_arguments
from simulators.gpu.checks.counters import Counters
from simulators.gpu.checks.races import Races
from simulators.gpu.checks.uninitialised import UninitialisedReads
from simulators.gpu.chip import CHIPS, Chip
from simulators.gpu.errors import PtxSyntaxError, SimulatorError, UnsupportedInstruction
from simulators.gpu.gpu import Gpu, WatcherFactory
from simulators.gpu.launch import Extent, Launch
from simulators.gpu.limits import LaunchError
from simulators.gpu.memory.global_memory import Allocation
from simulators.gpu.ptx.module import Kernel, Module
from simulators.gpu.ptx.parser import parse

CHECKS: dict[str, WatcherFactory] = {"race": Races, "uninitialised": UninitialisedReads}
_TARGET = re.compile(r"sm_([0-9]+)([0-9])([af]?)")


def main(arguments: Sequence[str]) -> int:
    """Run it, print what it did. 1: the kernel is wrong. Errors: UsageError for what cannot be run."""
    options = _parser().parse_args(arguments)
    try:
        module = parse(options.file.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {options.file}: {error.strerror}") from error
    except (UnicodeDecodeError, PtxSyntaxError) as error:
        raise UsageError(f"{options.file} is no PTX that is understood: {error}") from error
    kernel = _kernel(module, options.kernel)
    chip = _chip(module.target, options.arch)
    try:
        given = read_arguments(kernel, options.arg)
    except ArgumentError as error:
        raise UsageError(str(error)) from error
    if options.out is not None:
        _need_folder(options.out)
    launch = Launch(
        kernel.name,
        options.grid,
        options.block or _directive(kernel, "reqntid", "--block"),
        given.parameters,
        options.shared,
        options.cluster or _directive(kernel, "reqnctapercluster", None),
        options.cooperative,
    )
    watchers = [CHECKS[name] for name in options.check] + [Counters] * options.count
    return _run(Gpu(chip, seed=options.seed, watchers=watchers), module, launch, given, options.out)


def _run(gpu: Gpu, module: Module, launch: Launch, given: Arguments, out: Path | None) -> int:
    console = Console(highlight=False)
    before = [one.array.copy() for one in given.arrays]
    allocations = _allocations(gpu, given)
    try:
        report = gpu.launch(module, launch)
    except (LaunchError, UnsupportedInstruction) as error:
        raise UsageError(str(error)) from error
    except SimulatorError as error:
        console.print(Text(f"{launch.kernel} has failed: {error}", "bold red"), soft_wrap=True)
        return 1
    console.print(Text(simulation.summary(report, gpu.chip)), soft_wrap=True)
    if given.arrays:
        console.print(simulation.results(given.arrays, before, allocations))
    for table in simulation.counts(report):
        console.print(table)
    for finding in report.findings:
        console.print(Text(str(finding), "bold red"), soft_wrap=True)
    if out is not None:
        for argument in given.arrays:
            np.save(out / f"{argument.label}-{simulation.stem(argument)}.npy", argument.array)
    return 1 if report.findings else 0


def _allocations(gpu: Gpu, given: Arguments) -> list[Allocation | None]:
    """Of each array; None for one without elements."""
    return [
        gpu.memory.add_array(one.array, one.name, is_initialized=one.is_initialized) if one.array.size else None
        for one in given.arrays
    ]


def _kernel(module: Module, name: str | None) -> Kernel:
    """The one of that name, or the only one whose name has that part. Errors: UsageError."""
    if name is not None and name in module.kernels:
        return module.kernels[name]
    found = [kernel for one, kernel in module.kernels.items() if name is None or name in one]
    if len(found) != 1:
        wanted = (
            "choose one with --kernel" if name is None else f"{len(found)} of its kernels have {name!r} in their names"
        )
        raise UsageError(f"{wanted}; there are: {', '.join(module.kernels) or 'none'}")
    return found[0]


def _chip(target: str, arch: str | None) -> Chip:
    """The one that is asked for; else the first one that runs PTX of that target. Errors: UsageError."""
    able = [chip for chip in CHIPS.values() if _runs(target, chip)]
    if arch is None and able:
        return able[0]
    if arch is None or CHIPS[arch] not in able:
        names = ", ".join(chip.arch for chip in able) or "nothing that is simulated"
        raise UsageError(f"PTX for {target} does not run on {arch or 'what is simulated'}; it runs on {names}")
    return CHIPS[arch]


def _runs(target: str, chip: Chip) -> bool:
    """PTX runs on later chips too; of sm_90a on no other, of sm_100f on its family. Source: PTX ISA, ".target"."""
    found = _TARGET.fullmatch(target)
    if found is None:
        return False
    capability = int(found[1]), int(found[2])
    match found[3]:
        case "a":
            return capability == chip.capability
        case "f":
            return capability[0] == chip.capability[0] and capability <= chip.capability
    return capability <= chip.capability


def _directive(kernel: Kernel, name: str, option: str | None) -> Extent:
    """What the kernel itself demands; without an option that could say it, 1. Errors: UsageError."""
    if name not in kernel.directives and option is not None:
        raise UsageError(f"{option} is missing, and {kernel.name} does not say what it must be")
    x, y, z = (*kernel.directives.get(name, ()), 1, 1, 1)[:3]
    return x, y, z


def _need_folder(path: Path) -> None:
    """Before anything runs. Errors: UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "diptych simulate",
        description="Launch a kernel of a PTX text on a simulated GPU. The exit code is 1 if the kernel is wrong.",
    )
    parser.add_argument("file", type=Path, metavar="FILE.ptx")
    parser.add_argument("--kernel", metavar="NAME", help="its name, or a part of it (default: the only one)")
    parser.add_argument("--grid", type=_extent, required=True, metavar="X[,Y[,Z]]", help="blocks")
    parser.add_argument("--block", type=_extent, metavar="X[,Y[,Z]]", help="threads (default: as the kernel demands)")
    parser.add_argument("--cluster", type=_extent, metavar="X[,Y[,Z]]", help="blocks (default: as the kernel demands)")
    parser.add_argument("--shared", type=_whole, default=0, metavar="BYTES", help="dynamic shared memory of each block")
    parser.add_argument("--cooperative", action="store_true", help="all blocks must be resident at once")
    parser.add_argument("--arch", choices=CHIPS, help="the chip's (default: the first one that runs the text's target)")
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="VALUE",
        help="the next parameter: x.npy (a pointer to it), bf16:x.npy, u32:7, f32:0.5, raw:00ff, zeros:f32:4x1024, "
        "empty:f32:1024 (which holds nothing), struct:x.npy,u32:4096,u64:1",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write the arrays there afterwards, as ARGUMENT-NAME.npy"
    )
    parser.add_argument(
        "--check",
        type=_checks,
        default=list(CHECKS),
        metavar="NAME,...",
        help=f"what to look for beside faults: {', '.join(CHECKS)} or none (default: all)",
    )
    parser.add_argument("--count", action="store_true", help="print instructions, memory traffic and divergence")
    parser.add_argument(
        "--seed", type=_whole, metavar="N", help="run threads in a hostile order, the same for the same N"
    )
    return parser


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _extent(text: str) -> Extent:
    parts = text.split(",")
    if len(parts) > 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not one to three whole numbers of at least 1")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z


def _checks(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in CHECKS:
            raise argparse.ArgumentTypeError(f"{name!r} is no check; known are {', '.join(CHECKS)} and none")
    return list(dict.fromkeys(names))

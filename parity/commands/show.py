"""`diptych show NAME`: a twin's two texts side by side, and what a call of it launches."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from optimized.compile.arch import ARCHS, Arch, arch_named
from parity import cases
from parity.commands.choose import configuration, first_not_empty, inputs_of, need_compiler, one_of, refused
from parity.report.occupancy import residency, threads_of
from parity.report.sources import Source, sources
from parity.twin import Config, Twin

if TYPE_CHECKING:
    from optimized.compile.artifact import Artifact
    from optimized.compile.kernel import Kernel

SIDE_BY_SIDE = 160  # columns of a terminal that leave two texts room


def main(arguments: Sequence[str]) -> int:
    """Print it. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    twin = cases.twin_named(one_of("twin", options.name, cases.names()))
    arch = arch_named(one_of("architecture", options.arch, ARCHS))
    config = first_not_empty(twin) if options.config is None else configuration(twin, options.config)
    need_compiler()
    if options.ptx:
        print("\n".join(artifact.ptx for _, artifact in launches(twin, config, arch)))
        return 0
    launched = launches(twin, config, arch)
    console = Console()
    _print_sources(console, *sources(twin))
    _print_launch(console, config, arch, launched)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "diptych show", description="Show a kernel's reference and its optimized twin, and what a call launches."
    )
    parser.add_argument("name", metavar="NAME", help="a twin")
    parser.add_argument("--arch", default="sm_90a", metavar=",".join(ARCHS), help="(default: %(default)s)")
    parser.add_argument(
        "--config", metavar="JSON", help='of the call, or a part of it, as {"tokens": 4096} (default: a small one)'
    )
    parser.add_argument("--ptx", action="store_true", help="print the PTX of what is launched, and nothing else")
    return parser


def launches(twin: Twin, config: Config, arch: Arch) -> list[tuple[Kernel, Artifact]]:
    """What host code launches for a configuration, compiled. Errors: UsageError if it cannot be called so."""
    from optimized.compile.library import Library, cache_directories
    from parity.executors.compile_only import CompileExecutor
    from parity.executors.executor import Fault

    seen: list[tuple[Kernel, Artifact]] = []

    class Watched(Library):
        def artifact(self, kernel: Kernel, arch: Arch, *, line_info: bool = False) -> Artifact:
            seen.append((kernel, super().artifact(kernel, arch, line_info=line_info)))
            return seen[-1][1]

    with refused(twin, config):
        try:
            CompileExecutor(arch, Watched(cache_directories())).run(twin, inputs_of(twin, config), [])
        except Fault as fault:  # it is compiled all the same, and can be looked at
            Console(stderr=True).print(Text(f"diptych: {fault}", "bold red"), soft_wrap=True)
    return seen


def _print_sources(console: Console, reference: Source, optimized: Source) -> None:
    if console.width < SIDE_BY_SIDE:
        for source in (reference, optimized):
            console.print(Rule(source.path))
            console.print(_highlighted(source))
        return
    panels = Table(box=None, expand=True, padding=(0, 1), header_style="bold")
    for source in (reference, optimized):
        panels.add_column(source.path, ratio=1)
    panels.add_row(_highlighted(reference), _highlighted(optimized))
    console.print(panels)


def _highlighted(source: Source) -> Syntax:
    return Syntax(source.text, "python", theme="ansi_dark", background_color="default", word_wrap=True)


def _print_launch(console: Console, config: Config, arch: Arch, launched: Sequence[tuple[Kernel, Artifact]]) -> None:
    console.print(Rule(f"launched on {arch.name} ({arch.chip})"))
    console.print(Text(f"for {json.dumps(dict(config))}"), soft_wrap=True)
    if not launched:
        console.print("nothing: there is nothing to compute")
    for kernel, artifact in launched:
        console.print(Text(f"\n{type(kernel).__name__}", "bold"))
        facts = Table.grid(padding=(0, 2))
        for name, value in kernel.constants.items():
            facts.add_row(Text(name, "cyan"), json.dumps(value))
        console.print(facts)
        for line in _about(kernel, artifact, arch):
            console.print(Text(f"  {line}", "green"), soft_wrap=True)
    console.print("\nThe number of blocks is computed by host code from the sizes of a call.")


def _about(kernel: Kernel, artifact: Artifact, arch: Arch) -> list[str]:
    """What its machine code takes, a line each."""
    lines = []
    for one in artifact.resources:
        taken = f"{one.registers} registers, {one.local_bytes} bytes of local memory a thread"
        lines.append(f"{taken}; {one.shared_bytes} bytes of shared memory a block")
        threads = threads_of(artifact, one.kernel)
        if threads is not None:
            fits = residency(threads, one, arch)
            blocks = f"{fits.blocks} block{'s'[: fits.blocks != 1]} a multiprocessor, for want of {fits.limit}"
            lines.append(f"{threads} threads a block; {blocks} ({fits.share:.0%} of its threads)")
    if kernel.widest_access:
        lines.append(f"widest access: {kernel.widest_access} bytes")
    if kernel.is_cooperative:
        lines.append("cooperative: all blocks are resident at once")
    return lines

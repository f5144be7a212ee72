"""Tallies and failures in the terminal: a table that follows the run; without a terminal, a line a row when it ends."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from parity.record import Record
from parity.report.tally import Tally, shortcoming

STYLES = {"ok": "green", "fail": "bold red", "skipped": "yellow", "running": "cyan", "waiting": "dim"}
SHOWN_FAILURES = 20
SHOWN_LETTERS = 1000  # of a reason: compilers can say much


@contextmanager
def following(console: Console, tallies: Sequence[Tally]) -> Iterator[Callable[[Tally], None]]:
    """Inside, the table is shown as it grows. What is yielded is to be told of each tally that has changed."""
    if not console.is_terminal:

        def tell(tally: Tally) -> None:
            if tally.is_done:
                console.print(Text(line(tally)), soft_wrap=True)

        yield tell
        return
    with Live(console=console, get_renderable=lambda: table(tallies), refresh_per_second=4):
        yield lambda _: None


def table(tallies: Sequence[Tally]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("twin", "on", "arch"):
        shown.add_column(name, no_wrap=True)
    for name in ("cases", "worst ULP", "bound", "registers", "shared", "local", "seconds"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    before = None
    for tally in tallies:
        name = tally.twin if tally.twin != before else ""
        before = tally.twin
        status = Text(status_of(tally), STYLES[tally.status])
        shown.add_row(name, tally.executor, tally.arch, *_numbers(tally), status)
    return shown


def line(tally: Tally) -> str:
    cases, ulp, bound, registers, shared, local, seconds = _numbers(tally)
    error = f"{ulp}, " if bound == "equal" else f"{ulp} of {bound} ULP, " if ulp else ""
    resources = f"{registers} registers, {shared or 0} B shared, {local or 0} B local, " if registers else ""
    row = f"{tally.twin} on {tally.executor} {tally.arch}: {cases} cases, {error}{resources}{seconds} s"
    return f"{status_of(tally)}: {row}"


def status_of(tally: Tally) -> str:
    if tally.failures:
        return f"{len(tally.failures)} failed"
    if tally.status == "ok" and tally.skipped:
        return f"ok, {len(tally.skipped)} skipped"
    return tally.status


def _numbers(tally: Tally) -> tuple[str, ...]:
    """Cases, worst ULP, bound, registers, shared, local, seconds."""
    done = str(tally.total) if tally.is_done else f"{len(tally.records)}/{tally.total}"
    resources = (tally.registers, tally.shared_bytes, tally.local_bytes)
    return (
        done,
        *error_of(tally.worst),
        *("" if one is None else str(one) for one in resources),
        f"{tally.seconds:.1f}",
    )


def error_of(record: Record | None) -> tuple[str, str]:
    """ULPs and bound; nothing where nothing was computed. An output that must be equal has no bound to come near."""
    if record is None or record.max_ulp is None or record.bound is None:
        return "", ""
    if record.bound == 0:
        return ("equal" if record.max_ulp == 0 else "not equal"), "equal"
    return f"{record.max_ulp:.3g}", f"{record.bound:.3g}"


def print_end(console: Console, tallies: Sequence[Tally]) -> None:
    """The failures, each with what repeats it; why cases were skipped; and the sum of it all."""
    failures = [record for tally in tallies for record in tally.failures]
    for record in failures[:SHOWN_FAILURES]:
        _print_failure(console, record)
    if len(failures) > SHOWN_FAILURES:
        console.print(f"\n... and {len(failures) - SHOWN_FAILURES} more; --json and --html have them all")
    for reason in sorted({record.reason or "" for tally in tallies for record in tally.skipped}):
        console.print(Text(f"skipped: {reason}", "yellow"), soft_wrap=True)
    count = sum(tally.total for tally in tallies)
    names = {tally.twin for tally in tallies}
    of = f"{len(names)} twin{'s'[: len(names) != 1]}, {count} case{'s'[: count != 1]}"
    wanting = shortcoming(tallies)
    verdict = Text("all hold", "bold green") if wanting is None else Text(wanting, "bold red")
    console.print(Text.assemble(f"\n{of}: ", verdict))


def _print_failure(console: Console, record: Record) -> None:
    reason = record.reason or ""
    if len(reason) > SHOWN_LETTERS:
        reason = f"{reason[:SHOWN_LETTERS]} ..."
    title = Text.assemble(("\nFAIL ", "bold red"), (record.twin, "bold"), f" on {record.executor} {record.arch}")
    for shown in (title, Text(json.dumps(record.config)), Text(reason, "red"), Text(repeat_command(record), "cyan")):
        console.print(shown, soft_wrap=True)


def repeat_command(record: Record) -> str:
    """What tries that one case again."""
    arch = f" --arch {record.arch}" if record.executor in ("compile", "simulate") else ""
    config = shlex.quote(json.dumps(record.config))
    return f"diptych parity {record.twin} --on {record.executor}{arch} --case {config}"

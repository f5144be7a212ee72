"""The page of a run: one file that needs no network. The template escapes whatever it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments import formatters, highlight, lexers  # type: ignore[import-untyped]

from parity.record import Record
from parity.report.chart import Chart, chart
from parity.report.histogram import Histograms
from parity.report.sources import sources
from parity.report.table import error_of, repeat_command, status_of
from parity.report.tally import Tally, shortcoming, worst_case
from parity.twin import Twin

Benchmark = Mapping[str, Any]  # {twin, config, arch, microseconds, gbytes_per_second, share_of_limit}
LIGHT, DARK = "friendly", "github-dark"  # styles of Pygments


@dataclass(frozen=True)
class Panel:
    """One text."""

    title: str
    path: str
    lines: list[Markup]  # highlighted


@dataclass(frozen=True)
class Worst:
    """Of all cases of a twin that were computed, the one nearest to its bound, or beyond it."""

    record: Record
    ulp: str
    bound: str
    share: float  # of the bound, at most 1


@dataclass(frozen=True)
class Section:
    """All there is to say of one twin."""

    name: str
    tallies: list[Tally]
    worst: Worst | None
    charts: list[Chart]
    benchmarks: list[Benchmark]
    panels: list[Panel]

    @property
    def num_cases(self) -> int:
        return sum(one.total for one in self.tallies)

    @property
    def failures(self) -> list[Record]:
        return [record for one in self.tallies for record in one.failures]

    @property
    def skipped(self) -> list[Record]:
        return [record for one in self.tallies for record in one.skipped]

    @property
    def local_bytes(self) -> int:
        return max((one.local_bytes or 0 for one in self.tallies), default=0)

    @property
    def best_share(self) -> float | None:
        return max((one["share_of_limit"] for one in self.benchmarks), default=None)


def page(
    twins: Sequence[Twin], tallies: Sequence[Tally], histograms: Histograms, benchmarks: Sequence[Benchmark]
) -> str:
    """The HTML of what was tried."""
    sections = [_section(twin, tallies, histograms, benchmarks) for twin in twins]
    places = list(dict.fromkeys((one.executor, one.arch) for one in tallies))
    chips = sorted({record.chip for one in tallies for record in one.records if record.chip})
    return _template().render(
        sections=sections,
        places=places,
        chips=chips,
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        shortcoming=shortcoming(tallies),
        num_cases=sum(one.num_cases for one in sections),
        code_styles=_code_styles(),
    )


def _section(twin: Twin, tallies: Sequence[Tally], histograms: Histograms, benchmarks: Sequence[Benchmark]) -> Section:
    own = [one for one in tallies if one.twin == twin.name]
    return Section(
        twin.name,
        own,
        _worst(own),
        [
            chart(f"{executor} {arch}, {dtype}", histogram)
            for (name, executor, arch, dtype), histogram in histograms.items()
            if name == twin.name
        ],
        [one for one in benchmarks if one["twin"] == twin.name],
        [
            Panel(title, source.path, _highlighted(source.text))
            for title, source in zip(("reference", "optimized"), sources(twin), strict=True)
        ],
    )


def _worst(tallies: Sequence[Tally]) -> Worst | None:
    record = worst_case(record for one in tallies for record in one.records)
    if record is None or record.max_ulp is None or record.bound is None:
        return None
    share = record.max_ulp / record.bound if record.bound else float(record.max_ulp > 0)
    return Worst(record, *error_of(record), min(1.0, share))


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"compact": _compact, "repeat": repeat_command, "status": status_of}
    return environment.get_template("page.html")


def _compact(config: Mapping[str, Any]) -> str:
    """A configuration in a line, without the quotes of JSON."""
    return ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in config.items()
    )


def _highlighted(text: str) -> list[Markup]:
    """Its lines. Pygments escapes them."""
    marked = highlight(text, lexers.PythonLexer(stripnl=False), formatters.HtmlFormatter(nowrap=True))
    return [Markup(line) for line in marked.removesuffix("\n").split("\n")]


def _code_styles() -> Markup:
    def of(style: str) -> str:
        rules = formatters.HtmlFormatter(style=style, nobackground=True).get_style_defs(".code")
        return "\n".join(rule for rule in rules.splitlines() if rule.startswith(".code ."))

    return Markup(f"{of(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{of(DARK)}\n}}")

"""A histogram of errors as the marks of a drawing. Heights are logarithms: one wrong element of a million is seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10

from parity.report.histogram import END, STEPS, Histogram

WIDTH, HEIGHT = 480.0, 150.0


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    is_beyond: bool  # bounds: of the elements of another bar, those that err by more than they may
    label: str


@dataclass(frozen=True)
class Mark:
    """A value on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    title: str
    bars: list[Bar]
    ulps: list[Mark]  # along x
    counts: list[Mark]  # along y
    bound: Mark
    elements: int
    width: float = WIDTH
    height: float = HEIGHT


def chart(title: str, histogram: Histogram) -> Chart:
    shown = histogram.num_shown
    step = WIDTH / shown
    decades = max(1.0, log10(max(int(histogram.counts.max()), 1)) + 0.3)
    bars = []
    for counts_of, is_beyond in ((histogram.counts, False), (histogram.beyond, True)):  # one in front of the other
        for number, count in enumerate(counts_of[:shown].tolist()):
            if count:
                height = HEIGHT * (log10(count) + 0.3) / decades  # one element is no bar of height 0
                label = _label(number, count) + (" beyond the bound" if is_beyond else "")
                bars.append(Bar(number * step, HEIGHT - height, step * 0.86, height, is_beyond, label))
    every = max(1, round(shown / STEPS / 6))
    ulps = [Mark(ulp * STEPS * step, str(ulp)) for ulp in range(0, shown // STEPS + 1, every)]
    counts = [
        Mark(HEIGHT * (1 - (power + 0.3) / decades), f"{10**power:,}")
        for power in range(0, int(decades) + 1, 1 if decades < 5 else 2)
        if (power + 0.3) <= decades
    ]
    bound = Mark(min(WIDTH, histogram.bound * STEPS * step), f"largest bound {histogram.bound:.3g}")
    return Chart(title, bars, ulps, counts, bound, int(histogram.counts.sum()))


def _label(number: int, count: int) -> str:
    low = number / STEPS
    span = f"{END} ULP and more" if low >= END else f"{low:.2f} to {low + 1 / STEPS:.2f} ULP"
    return f"{span}: {count:,} element{'s'[: count != 1]}"

"""How errors are spread: a count of elements for each twentieth of an ULP."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from parity.judge import Judgement
from reference.formats import Array

STEPS = 20  # bins of one ULP
END = 16  # ULPs; what lies beyond, infinity too, is in one more bin


def _no_counts() -> Array:
    return np.zeros(STEPS * END + 1, np.int64)


@dataclass
class Histogram:
    """Of the continuous outputs of one dtype."""

    bound: float = 0.0  # the largest of those that were added
    counts: Array = field(default_factory=_no_counts)
    beyond: Array = field(default_factory=_no_counts)  # of those, elements beyond bounds of their own

    def add(self, judgement: Judgement) -> None:
        self.bound = max(self.bound, judgement.bound)
        with np.errstate(invalid="ignore"):
            bins = np.minimum(judgement.errors * STEPS, STEPS * END).astype(np.int64)
        self.counts += np.bincount(bins.ravel(), minlength=len(self.counts))
        self.beyond += np.bincount(bins[judgement.is_beyond], minlength=len(self.beyond))

    def add_all(self, other: Histogram) -> None:
        """What another has counted."""
        self.bound = max(self.bound, other.bound)
        self.counts += other.counts
        self.beyond += other.beyond

    @property
    def num_shown(self) -> int:
        """Bins up to the last that is not empty, or that holds the bound."""
        last = int(np.flatnonzero(self.counts).max(initial=0))
        return min(max(last, int(min(self.bound, END) * STEPS)) + 1, len(self.counts))


Histograms = dict[tuple[str, str, str, str], Histogram]  # by twin, executor, architecture and dtype of the outputs

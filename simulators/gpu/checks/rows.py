"""Rows of numbers that many threads hold, and that never change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.checks.knowledge import Times

NOTHING = 0  # the number of the row of who knows nothing


class Rows:
    """Rows of equal length, which are only added. Those that nobody holds any more are dropped now and then."""

    def __init__(self, length: int) -> None:
        self._rows = np.zeros((16, length), np.int32)
        self._count = 1  # row 0 knows nothing

    def __getitem__(self, index: NDArray[np.intp] | int) -> Times:
        return self._rows[index]

    def at(self, rows: NDArray[np.intp], columns: NDArray[np.int64]) -> Times:
        return self._rows[rows, columns]

    def add(self, rows: Times, held: NDArray[np.intp]) -> int:
        """The number of the first one. held: the rows that threads hold, which are renumbered in place."""
        if self._count + len(rows) > len(self._rows):
            used, ranks = ranked(np.append(held, NOTHING))
            held[:] = ranks[:-1]
            self._count = len(used)
            larger = np.zeros((max(2 * (self._count + len(rows)), 16), self._rows.shape[1]), np.int32)
            larger[: self._count] = self._rows[used]
            self._rows = larger
        first = self._count
        self._rows[first : first + len(rows)] = rows
        self._count += len(rows)
        return first


def ranked(numbers: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The distinct ones of small numbers, ascending, and which of them each is."""
    occurs = np.zeros(int(numbers.max()) + 1, np.bool_)
    occurs[numbers] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]

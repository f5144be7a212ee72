"""What is known of threads and engines of some blocks: parts that never change, so that many can share them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int32]
_numbers = itertools.count()


class Row:
    """Of each column of a block (`clocks.Layout`), the time up to which it is known. Equal to itself alone."""

    __slots__ = ("_covers", "_fenced", "_number", "times")

    def __init__(self, times: Times) -> None:
        self.times = times
        self._number = next(_numbers)
        self._covers: dict[int, bool] = {}  # by the number of another row: the same two are compared again and again
        self._fenced: dict[tuple[str, ...], Row] = {}

    def covers(self, other: Row) -> bool:
        """Does it say all that the other one, of the same block, says?"""
        found = self._covers.get(other._number)
        if found is None:
            found = self._covers[other._number] = bool((self.times >= other.times).all())
        return found

    def fenced(self, views: tuple[str, ...], make: Callable[[Times], Times]) -> Row:
        """What a proxy fence makes of it: the same row each time."""
        if views not in self._fenced:
            self._fenced[views] = Row(make(self.times))
        return self._fenced[views]


Knowledge = dict[int, Row]  # by block


def joined(parts: Iterable[Knowledge]) -> Knowledge:
    """What any of them says: one of them itself, if it says it all."""
    whole: Knowledge = {}
    for part in parts:
        if not whole or whole is part:
            whole = part
        elif part:
            whole = _joined(whole, part)
    return whole


def _joined(one: Knowledge, other: Knowledge) -> Knowledge:
    differ = other.items() - one.items()
    if not differ:
        return one
    rows = one.copy()
    is_one, is_other = True, len(other) >= len(one) and one.keys() <= other.keys()
    for block, theirs in differ:
        mine = rows.get(block)
        if mine is not None and mine.covers(theirs):
            is_other = False
        elif mine is None or theirs.covers(mine):
            is_one, rows[block] = False, theirs
        else:
            is_one, is_other, rows[block] = False, False, Row(np.maximum(mine.times, theirs.times))
    return one if is_one else other if is_other else rows

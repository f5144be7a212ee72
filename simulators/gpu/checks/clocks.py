"""Vector clocks over the threads of a launch: who knows of what others did.

Each thread's time is a number that grows whenever it lets others know of what it has done. What a thread knows is, of
every other thread, the time up to which all that thread did is known to have happened. Most of it is shared: threads
that leave a barrier together know the same. So knowledge is held in rows, and a thread holds the numbers of two: one of
its own block's threads, and one of all threads of the grid, for what it has learned through memory.
Source: Lamport 1978; Flanagan and Freund, FastTrack, PLDI 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch

Times = NDArray[np.int32]
_NOTHING = 0  # the row of who knows nothing


class _Rows:
    """Rows of equal length, which are only added. Those that nobody holds any more are dropped now and then."""

    def __init__(self, length: int) -> None:
        self._rows = np.zeros((16, length), np.int32)
        self.count = 1  # row 0 knows nothing

    @property
    def length(self) -> int:
        return self._rows.shape[1]

    def __getitem__(self, index: NDArray[np.intp] | int) -> Times:
        return self._rows[index]

    def at(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Times:
        return self._rows[rows, columns]

    def add(self, rows: Times, held: NDArray[np.intp]) -> int:
        """The number of the first one. held: the rows that threads hold, which are renumbered in place."""
        if self.count + len(rows) > len(self._rows):
            used = np.union1d([_NOTHING], held)
            held[:] = np.searchsorted(used, held)
            self.count = len(used)
            room = max(2 * (self.count + len(rows)), 16)
            larger = np.zeros((room, self._rows.shape[1]), np.int32)
            larger[: self.count] = self._rows[used]
            self._rows = larger
        first = self.count
        self._rows[first : first + len(rows)] = rows
        self.count += len(rows)
        return first

    def widen(self, more: int) -> None:
        self._rows = np.pad(self._rows, ((0, 0), (0, more)))


class Clocks:
    """Of the threads of all batches so far. A thread is named by its number among all of them."""

    def __init__(self) -> None:
        self.base = 0  # the number of the present batch's first thread
        self._slot_threads = 0
        self.time: Times = np.zeros(0, np.int32)  # of each thread of the present batch
        self._near = _Rows(0)  # over a block's threads
        self._near_of = np.zeros(0, np.intp)  # each thread's row
        self._far = _Rows(0)  # over all threads
        self._far_of = np.zeros(0, np.intp)

    def begin(self, batch: Batch) -> None:
        """A new batch. What was learned through memory of threads that have ended stays known there."""
        self.base += len(self.time)
        self._slot_threads = batch.slot_threads
        self.time = np.ones(batch.num_threads, np.int32)
        self._near = _Rows(batch.slot_threads)
        self._near_of = np.zeros(batch.num_threads, np.intp)
        self._far = _Rows(self.base + batch.num_threads)
        self._far_of = np.zeros(batch.num_threads, np.intp)

    def extend(self, batch: Batch) -> None:
        """The batch has more threads."""
        more = batch.num_threads - len(self.time)
        self.time = np.concatenate([self.time, np.ones(more, np.int32)])
        self._near_of = np.concatenate([self._near_of, np.zeros(more, np.intp)])
        self._far_of = np.concatenate([self._far_of, np.zeros(more, np.intp)])
        self._far.widen(more)

    def knows(self, threads: NDArray[np.intp], others: NDArray[np.intp]) -> Times:
        """Of each pair, up to which time the thread of this batch knows of the other, any thread so far."""
        same_block = (others >= self.base) & (
            (others - self.base) // self._slot_threads == threads // self._slot_threads
        )
        near = self._near.at(self._near_of[threads], (others - self.base) % self._slot_threads)
        known = np.where(same_block, near, np.int32(0))
        if self._far.count > 1:
            known = np.maximum(known, self._far.at(self._far_of[threads], others))
        return known

    def synchronize(self, sets: Sequence[NDArray[np.intp]]) -> None:
        """Within each set, all of one block, each knows from now on what any knew or did."""
        lengths = {len(one) for one in sets}
        if len(lengths) == 1 and len(sets) > 1:
            together = np.stack(sets)
            alike = (self._near_of[together] == self._near_of[together[:, :1]]).all()
            if alike and (self._far_of[together] == self._far_of[together[:, :1]]).all():
                self._synchronize_rows(together)
                return
        for one in sets:
            self._synchronize_one(one)

    def _synchronize_rows(self, together: NDArray[np.intp]) -> None:
        """Sets of equal length, in each of which all know the same."""
        rows = self._near[self._near_of[together[:, 0]]]
        rows[np.arange(len(rows))[:, None], together % self._slot_threads] = self.time[together]
        first = self._near.add(rows, self._near_of)
        self._near_of[together] = first + np.arange(len(rows))[:, None]
        self.time[together] += 1

    def _synchronize_one(self, threads: NDArray[np.intp]) -> None:
        row = self._near[np.unique(self._near_of[threads])].max(axis=0)
        row[threads % self._slot_threads] = self.time[threads]
        self._near_of[threads] = self._near.add(row[None], self._near_of)
        far = np.unique(self._far_of[threads])
        if len(far) > 1:
            self._far_of[threads] = self._far.add(self._far[far].max(axis=0)[None], self._far_of)
        self.time[threads] += 1

    def release(self, threads: NDArray[np.intp]) -> Times:
        """What any of these threads, all of one block, knows or has done: [all threads]."""
        known = self._far[np.unique(self._far_of[threads])].max(axis=0)
        first = self.base + int(threads[0]) // self._slot_threads * self._slot_threads
        near = self._near[np.unique(self._near_of[threads])].max(axis=0)
        near[threads % self._slot_threads] = self.time[threads]
        own = known[first : first + self._slot_threads]
        np.maximum(own, near, out=own)
        self.time[threads] += 1
        return known

    def acquire(self, threads: NDArray[np.intp], known: Times) -> None:
        """These threads, all of one block, learn what was released."""
        size = self._far.length
        known = np.pad(known, (0, size - len(known)))
        first = self.base + int(threads[0]) // self._slot_threads * self._slot_threads
        near = known[first : first + self._slot_threads]
        for mine in _alike(threads, self._near_of):
            row = self._near_of[mine[0]]
            if (near > self._near[row]).any():
                self._near_of[mine] = self._near.add(np.maximum(self._near[row], near)[None], self._near_of)
        for mine in _alike(threads, self._far_of):
            row = self._far_of[mine[0]]
            if (known > self._far[row]).any():
                self._far_of[mine] = self._far.add(np.maximum(self._far[row], known)[None], self._far_of)


def _alike(threads: NDArray[np.intp], held: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Parts, in each of which all hold the same row."""
    rows = held[threads]
    return [threads[rows == row] for row in np.unique(rows)]

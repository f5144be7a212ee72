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
_COMPACT = 4096  # rows at which those that nobody holds any more are dropped


class Clocks:
    """Of the threads of all batches so far. A thread is named by its number among all of them."""

    def __init__(self) -> None:
        self.base = 0  # the number of the present batch's first thread
        self._finished = 0
        self._slot_threads = 0
        self.time: Times = np.zeros(0, np.int32)  # of each thread of the present batch
        self._near = np.zeros((1, 0), np.int32)  # rows over a block's threads
        self._near_of = np.zeros(0, np.intp)  # each thread's row
        self._far = np.zeros((1, 0), np.int32)  # rows over all threads
        self._far_of = np.zeros(0, np.intp)

    def begin(self, batch: Batch) -> None:
        """A new batch. What was learned through memory of threads that have ended stays known there."""
        self.base += len(self.time)
        self._slot_threads = batch.slot_threads
        self.time = np.ones(batch.num_threads, np.int32)
        self._near = np.zeros((1, batch.slot_threads), np.int32)
        self._near_of = np.zeros(batch.num_threads, np.intp)
        self._far = np.zeros((1, self.base + batch.num_threads), np.int32)
        self._far_of = np.zeros(batch.num_threads, np.intp)

    def extend(self, batch: Batch) -> None:
        """The batch has more threads."""
        more = batch.num_threads - len(self.time)
        self.time = np.concatenate([self.time, np.ones(more, np.int32)])
        self._near_of = np.concatenate([self._near_of, np.zeros(more, np.intp)])
        self._far_of = np.concatenate([self._far_of, np.zeros(more, np.intp)])
        self._far = np.pad(self._far, ((0, 0), (0, more)))

    def knows(self, threads: NDArray[np.intp], others: NDArray[np.intp]) -> Times:
        """Of each pair, up to which time the thread of this batch knows of the other, any thread so far."""
        same_block = (others >= self.base) & ((others - self.base) // self._slot_threads == threads // self._slot_threads)
        near = self._near[self._near_of[threads], (others - self.base) % self._slot_threads]
        known = np.where(same_block, near, np.int32(0))
        if len(self._far) > 1:
            known = np.maximum(known, self._far[self._far_of[threads], others])
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
        first = self._add_near(rows)
        self._near_of[together] = first + np.arange(len(rows))[:, None]
        self.time[together] += 1

    def _synchronize_one(self, threads: NDArray[np.intp]) -> None:
        row = self._near[np.unique(self._near_of[threads])].max(axis=0)
        row[threads % self._slot_threads] = self.time[threads]
        self._near_of[threads] = self._add_near(row[None])
        far = np.unique(self._far_of[threads])
        if len(far) > 1:
            self._far_of[threads] = self._add_far(self._far[far].max(axis=0)[None])
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
        size = self._far.shape[1]
        known = np.pad(known, (0, size - len(known)))
        first = self.base + int(threads[0]) // self._slot_threads * self._slot_threads
        near = known[first : first + self._slot_threads]
        for row in np.unique(self._near_of[threads]):
            mine = threads[self._near_of[threads] == row]
            if (near > self._near[row]).any():
                self._near_of[mine] = self._add_near(np.maximum(self._near[row], near)[None])
        for row in np.unique(self._far_of[threads]):
            mine = threads[self._far_of[threads] == row]
            if (known > self._far[row]).any():
                self._far_of[mine] = self._add_far(np.maximum(self._far[row], known)[None])

    def _add_near(self, rows: Times) -> int:
        if len(self._near) > _COMPACT + len(rows):
            self._near, self._near_of = _compacted(self._near, self._near_of)
        first = len(self._near)
        self._near = np.concatenate([self._near, rows])
        return first

    def _add_far(self, rows: Times) -> int:
        if len(self._far) > 4 + 2 * len(np.unique(self._far_of)):
            self._far, self._far_of = _compacted(self._far, self._far_of)
        first = len(self._far)
        self._far = np.concatenate([self._far, rows])
        return first


def _compacted(rows: Times, held: NDArray[np.intp]) -> tuple[Times, NDArray[np.intp]]:
    """Row 0, which knows nothing, stays."""
    used = np.union1d([0], held)
    return rows[used], np.searchsorted(used, held)

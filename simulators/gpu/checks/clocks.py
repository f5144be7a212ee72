"""Vector clocks over the threads of a launch: who knows of what others did.

Each thread's time is a number that grows whenever it lets others know of what it has done. What a thread knows is, of
every other thread, the time up to which all that thread did is known to have happened. Most of it is shared: threads
that leave a barrier together know the same. So knowledge is held in parts that never change, and a thread holds two of
them: a row over its own block's threads, and what it has learned of other blocks through memory.
Source: Lamport 1978; Flanagan and Freund, FastTrack, PLDI 2009.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch
from simulators.gpu.checks.knowledge import Knowledge, Row, Times, joined

_NOTHING = 0  # the number of the row of who knows nothing


@dataclass(frozen=True)
class Snapshot:
    """What threads knew at one moment."""

    rows: Times  # [n, threads of a block]
    row_of: NDArray[np.intp]  # each thread's
    far: list[Knowledge]
    time: Times  # each thread's


class Clocks:
    """Of the threads of all batches so far. A thread is named by its number among all of them, and so is a block."""

    def __init__(self) -> None:
        self.base = 0  # the number of the present batch's first thread
        self.slot_threads = 1
        self.time: Times = np.zeros(0, np.int32)  # of each thread of the present batch
        self._near = _Rows(1)  # over a block's threads
        self._near_of = np.zeros(0, np.intp)  # each thread's row
        self._far: list[Knowledge] = [{}]  # of other blocks
        self._far_of = np.zeros(0, np.intp)  # each thread's knowledge
        self._blocks = np.zeros(0, np.int64)  # each thread's
        self._joined: tuple[Knowledge, Knowledge, Knowledge] = {}, {}, {}  # the latest two, and what both say

    def begin(self, batch: Batch) -> None:
        """A new batch, which knows nothing. What was released by threads that have ended can still be acquired."""
        self.base += len(self.time)
        self.slot_threads = batch.slot_threads
        self.time = np.ones(batch.num_threads, np.int32)
        self._near = _Rows(batch.slot_threads)
        self._near_of = np.zeros(batch.num_threads, np.intp)
        self._far = [{}]
        self._far_of = np.zeros(batch.num_threads, np.intp)
        self._blocks = self.base // self.slot_threads + batch.slot.astype(np.int64)

    def extend(self, batch: Batch) -> None:
        """The batch has more threads."""
        more = batch.num_threads - len(self.time)
        self.time = np.concatenate([self.time, np.ones(more, np.int32)])
        self._near_of = np.concatenate([self._near_of, np.zeros(more, np.intp)])
        self._far_of = np.concatenate([self._far_of, np.zeros(more, np.intp)])
        self._blocks = self.base // self.slot_threads + batch.slot.astype(np.int64)

    def blocks(self, threads: NDArray[np.intp]) -> NDArray[np.int64]:
        """Of threads of this batch, among the blocks of all batches."""
        return self._blocks[threads]

    def block(self, thread: int) -> int:
        """Of one thread, as `blocks`."""
        return (self.base + thread) // self.slot_threads

    def knows(self, threads: NDArray[np.intp], others: NDArray[np.int64]) -> Times:
        """Of each pair, up to which time the thread of this batch knows of the other, any thread so far."""
        other = others // self.slot_threads
        lanes = others - other * self.slot_threads
        own = other == self.blocks(threads)
        if own.all():
            return self._near.at(self._near_of[threads], lanes)
        known = np.where(own, self._near.at(self._near_of[threads], lanes), np.int32(0))
        abroad = np.flatnonzero(~own & (self._far_of[threads] != _NOTHING))
        if len(abroad):
            known[abroad] = self._knows_abroad(self._far_of[threads[abroad]], other[abroad], lanes[abroad])
        return known

    def _knows_abroad(self, far: NDArray[np.intp], blocks: NDArray[np.int64], lanes: NDArray[np.int64]) -> Times:
        # Whole knowledge and whole rows are few, and the pairs of them that are asked for are fewer than the threads.
        span = int(blocks.max()) + 1
        held, far = _ranked(far)
        pairs, which = _ranked(far * span + blocks)
        numbers: dict[Row | None, int] = {None: 0}
        found = [
            numbers.setdefault(self._far[held[pair // span]].get(pair % span), len(numbers)) for pair in pairs.tolist()
        ]
        nothing = np.zeros(self.slot_threads, np.int32)
        rows = np.stack([nothing if row is None else row.times for row in numbers])
        return rows[np.array(found)[which], lanes]

    def synchronize(self, sets: NDArray[np.intp]) -> None:
        """[sets, threads]: within each set, all of one block, each knows from now on what any knew or did."""
        lines = np.arange(len(sets))[:, None]
        held, far = self._near_of[sets], self._far_of[sets]
        rows = self._near[held[:, 0]]
        for one in np.flatnonzero((held != held[:, :1]).any(axis=1)):
            rows[one] = self._near[np.unique(held[one])].max(axis=0)
        rows[lines, sets % self.slot_threads] = self.time[sets]
        for one in np.flatnonzero((far != far[:, :1]).any(axis=1)):
            numbers = np.unique(self._far_of[sets[one]])  # `far` grows old: holding something may renumber
            self._hold_far(sets[one], joined(self._far[number] for number in numbers))
        self._near_of[sets] = self._near.add(rows, self._near_of) + lines
        self.time[sets] += 1

    def release(self, threads: NDArray[np.intp]) -> Knowledge:
        """What any of these threads, all of one block, knows or has done."""
        known = dict(joined(self._far[one] for one in _distinct(self._far_of[threads])))
        near = self._near[_distinct(self._near_of[threads])].max(axis=0)
        near[threads % self.slot_threads] = self.time[threads]
        known[self.block(int(threads[0]))] = Row(near)
        self.time[threads] += 1
        return known

    def snapshot(self, threads: NDArray[np.intp]) -> Snapshot:
        """What each of these threads knows or has done."""
        held, row_of = np.unique(self._near_of[threads], return_inverse=True)
        far = [self._far[one] for one in self._far_of[threads].tolist()]
        taken = Snapshot(self._near[held], row_of, far, self.time[threads])
        self.time[threads] += 1
        return taken

    def knowledge_of(self, thread: int, snapshot: Snapshot, which: int) -> Knowledge:
        """As `release`, of the thread that was one of the snapshot's."""
        near = snapshot.rows[snapshot.row_of[which]].copy()
        near[thread % self.slot_threads] = snapshot.time[which]
        return {**snapshot.far[which], self.block(thread): Row(near)}

    def acquire(self, threads: NDArray[np.intp], known: Knowledge) -> None:
        """These threads, all of one block, learn what was released."""
        near = known.get(self.block(int(threads[0])))
        if near is not None:
            for mine in _alike(threads, self._near_of):
                row = self._near[int(self._near_of[mine[0]])]
                if (near.times > row).any():
                    self._near_of[mine] = self._near.add(np.maximum(row, near.times)[None], self._near_of)
        for mine in _alike(threads, self._far_of):
            before = self._far[int(self._far_of[mine[0]])]
            if self._joined[0] is not before or self._joined[1] is not known:
                self._joined = before, known, joined((before, known))
            after = self._joined[2]
            if after is not before:
                self._hold_far(mine, after)

    def _hold_far(self, threads: NDArray[np.intp], known: Knowledge) -> None:
        if self._far[-1] is not known:
            if len(self._far) >= 2 * self._far_limit:
                used, ranks = _ranked(np.append(self._far_of, _NOTHING))
                self._far_of = ranks[:-1]
                self._far = [self._far[one] for one in used]
                self._far_limit = max(len(self._far), 64)
            self._far.append(known)
        self._far_of[threads] = len(self._far) - 1

    _far_limit = 64  # as many as are held, or so


class _Rows:
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
            used, ranks = _ranked(np.append(held, _NOTHING))
            held[:] = ranks[:-1]
            self._count = len(used)
            larger = np.zeros((max(2 * (self._count + len(rows)), 16), self._rows.shape[1]), np.int32)
            larger[: self._count] = self._rows[used]
            self._rows = larger
        first = self._count
        self._rows[first : first + len(rows)] = rows
        self._count += len(rows)
        return first


def _ranked(numbers: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The distinct ones of small numbers, ascending, and which of them each is."""
    occurs = np.zeros(int(numbers.max()) + 1, np.bool_)
    occurs[numbers] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]


def _distinct(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    """In ascending order; they are mostly the same."""
    return numbers[:1] if (numbers == numbers[0]).all() else np.unique(numbers)


def _alike(threads: NDArray[np.intp], held: NDArray[np.intp]) -> Iterable[NDArray[np.intp]]:
    """Parts, in each of which all hold the same."""
    numbers = held[threads]
    if (numbers == numbers[0]).all():
        return [threads]
    return [threads[numbers == number] for number in np.unique(numbers)]

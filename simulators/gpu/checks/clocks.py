"""Vector clocks over the threads of a launch: who knows of what others did.

Each thread's time is a number that grows whenever it lets others know of what it has done. What a thread knows is, of
every other thread, the time up to which all that thread did is known to have happened. Most of it is shared: threads
that leave a barrier together know the same. So knowledge is held in parts that never change, and a thread holds two of
them: a row over its own block, and what it has learned of other blocks through memory.

What engines do for threads has times of its own, and what the async proxy sees of a thread has another (`layout`).
Source: Lamport 1978; Flanagan and Freund, FastTrack, PLDI 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch
from simulators.gpu.checks.knowledge import Knowledge, Row, Times, joined
from simulators.gpu.checks.layout import Layout
from simulators.gpu.checks.rows import NOTHING, Rows, ranked
from simulators.gpu.watch import Fenced


@dataclass(frozen=True)
class Snapshot:
    """What threads knew at one moment."""

    rows: Times  # [n, width]
    row_of: NDArray[np.intp]  # each thread's
    far: list[Knowledge]
    own: Times  # [parts, threads]


class Clocks:
    """Of the threads of all batches so far. A block is named by its number among all of them; a thread, or what has a
    time besides, by its block times `span`, and its column."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._columns = layout.columns
        self._first_block = 0
        self._own: Times = np.zeros((len(self._columns), 0), np.int32)  # what each thread knows of itself
        self._near = Rows(layout.width)  # over a block
        self._near_of = np.zeros(0, np.intp)  # each thread's row
        self._far: list[Knowledge] = [{}]  # of other blocks
        self._far_of = np.zeros(0, np.intp)  # each thread's knowledge
        self._blocks = np.zeros(0, np.int64)  # each thread's
        self._numbers = np.zeros(0, np.int64)  # each thread's
        self._joined: tuple[Knowledge, Knowledge, Knowledge] = {}, {}, {}  # the latest two, and what both say

    def begin(self, batch: Batch) -> None:
        """A new batch, which knows nothing. What was released by threads that have ended can still be acquired."""
        self._first_block += len(self._numbers) // self.layout.threads
        self._own = np.zeros((len(self._columns), 0), np.int32)
        self._near = Rows(self.layout.width)
        self._near_of = np.zeros(0, np.intp)
        self._far = [{}]
        self._far_of = np.zeros(0, np.intp)
        self.extend(batch)

    def extend(self, batch: Batch) -> None:
        """The batch has more threads."""
        more = batch.num_threads - len(self._near_of)
        own = np.zeros((len(self._columns), more), np.int32)
        own[0] = 1
        self._own = np.concatenate([self._own, own], axis=1)
        self._near_of = np.concatenate([self._near_of, np.zeros(more, np.intp)])
        self._far_of = np.concatenate([self._far_of, np.zeros(more, np.intp)])
        self._blocks = self._first_block + batch.slot.astype(np.int64)
        self._numbers = self._blocks * self.layout.span + batch.in_block

    # -- names and times --------------------------------------------------------------------------------------------

    @property
    def time(self) -> Times:
        """Of each thread of the present batch."""
        return self._own[0]

    def blocks(self, threads: NDArray[np.intp]) -> NDArray[np.int64]:
        """Of threads of this batch, among the blocks of all batches."""
        return self._blocks[threads]

    def block(self, thread: int) -> int:
        """Of one thread, as `blocks`."""
        return self.block_in(thread // self.layout.threads)

    def block_in(self, slot: int) -> int:
        """The block that is there now."""
        return self._first_block + slot

    def numbers(self, threads: NDArray[np.intp]) -> NDArray[np.int64]:
        """Of threads of this batch, among all of them."""
        if not self.layout.has_engines:
            return threads + self._first_block * self.layout.span
        return self._numbers[threads]

    def thread(self, number: int) -> int | None:
        """In this batch; None: of one before."""
        block, column = divmod(number, self.layout.span)
        return (block - self._first_block) * self.layout.threads + column if block >= self._first_block else None

    # -- what is known ----------------------------------------------------------------------------------------------

    def knows(self, threads: NDArray[np.intp], others: NDArray[np.int64]) -> Times:
        """Of each pair, up to which time the thread of this batch knows of the other one, of any batch so far."""
        other = others // self.layout.span
        columns = others - other * self.layout.span
        known = self._known(threads, other, columns)
        if self.layout.has_copies:
            mine = np.flatnonzero(others == self._numbers[threads] + self.layout.threads)
            known[mine] = np.maximum(known[mine], self._own[1, threads[mine]])
        return known

    def knows_fenced(self, threads: NDArray[np.intp], others: NDArray[np.int64], fenced: Fenced) -> Times:
        """As `knows` of other threads, or of itself: of what the async proxy can see too."""
        other = others // self.layout.span
        view = self.layout.view(fenced)
        known = self._known(threads, other, others - other * self.layout.span + view)
        own = self._own[self._columns.index(view), threads]
        return np.where(others == self._numbers[threads], np.maximum(known, own), known)

    def _known(self, threads: NDArray[np.intp], other: NDArray[np.int64], columns: NDArray[np.int64]) -> Times:
        own = other == self.blocks(threads)
        if own.all():
            return self._near.at(self._near_of[threads], columns)
        known = np.where(own, self._near.at(self._near_of[threads], columns), np.int32(0))
        abroad = np.flatnonzero(~own & (self._far_of[threads] != NOTHING))
        if len(abroad):
            known[abroad] = self._knows_abroad(self._far_of[threads[abroad]], other[abroad], columns[abroad])
        return known

    def _knows_abroad(self, far: NDArray[np.intp], blocks: NDArray[np.int64], columns: NDArray[np.int64]) -> Times:
        # Whole knowledge and whole rows are few, and the pairs of them that are asked for are fewer than the threads.
        span = int(blocks.max()) + 1
        held, far = ranked(far)
        pairs, which = ranked(far * span + blocks)
        numbers: dict[Row | None, int] = {None: 0}
        found = [
            numbers.setdefault(self._far[held[pair // span]].get(pair % span), len(numbers)) for pair in pairs.tolist()
        ]
        nothing = np.zeros(self.layout.width, np.int32)
        rows = np.stack([nothing if row is None else row.times for row in numbers])
        return rows[np.array(found)[which], columns]

    def synchronize(self, sets: NDArray[np.intp]) -> None:
        """[sets, threads]: within each set, all of one block, each knows from now on what any knew or did."""
        lines = np.arange(len(sets))[:, None]
        held, far = self._near_of[sets], self._far_of[sets]
        rows = self._near[held[:, 0]]
        for one in np.flatnonzero((held != held[:, :1]).any(axis=1)):
            rows[one] = self._near[np.unique(held[one])].max(axis=0)
        lanes = sets % self.layout.threads
        rows[lines, lanes] = self.time[sets]
        for part, first in enumerate(self._columns[1:], 1):
            rows[lines, first + lanes] = np.maximum(rows[lines, first + lanes], self._own[part, sets])
        for one in np.flatnonzero((far != far[:, :1]).any(axis=1)):
            numbers = np.unique(self._far_of[sets[one]])  # `far` grows old: holding something may renumber
            self._hold_far(sets[one], joined(self._far[number] for number in numbers))
        self._near_of[sets] = self._near.add(rows, self._near_of) + lines
        self.time[sets] += 1

    def release(self, threads: NDArray[np.intp], copies: Times | None = None) -> Knowledge:
        """What any of these threads, all of one block, knows or has done; copies: with their copies up to these."""
        known = dict(joined(self._far[one] for one in _distinct(self._far_of[threads])))
        near = self._near[_distinct(self._near_of[threads])].max(axis=0)
        lanes = threads % self.layout.threads
        for part, first in enumerate(self._columns):
            near[first + lanes] = np.maximum(near[first + lanes], self._own[part, threads])
        if copies is not None:
            near[self.layout.threads + lanes] = copies
        known[self.block(int(threads[0]))] = Row(near)
        self.time[threads] += 1
        return known

    def snapshot(self, threads: NDArray[np.intp]) -> Snapshot:
        """What each of these threads knows or has done."""
        held, row_of = np.unique(self._near_of[threads], return_inverse=True)
        far = [self._far[one] for one in self._far_of[threads].tolist()]
        taken = Snapshot(self._near[held], row_of, far, self._own[:, threads])
        self.time[threads] += 1
        return taken

    def knowledge_of(self, thread: int, snapshot: Snapshot, which: int) -> Knowledge:
        """As `release`, of the thread that was one of the snapshot's."""
        near = snapshot.rows[snapshot.row_of[which]].copy()
        own = np.array(self._columns) + thread % self.layout.threads
        near[own] = np.maximum(near[own], snapshot.own[:, which])
        return {**snapshot.far[which], self.block(thread): Row(near)}

    def known_of(self, number: int, time: int) -> Knowledge:
        """That what has this number is done up to that time."""
        block, column = divmod(number, self.layout.span)
        near = np.zeros(self.layout.width, np.int32)
        near[column] = time
        return {block: Row(near)}

    def finish_copies(self, threads: NDArray[np.intp], times: Times) -> None:
        """They know that their own copies are done up to these times."""
        self._own[1, threads] = np.maximum(self._own[1, threads], times)

    def fence_proxy(self, threads: NDArray[np.intp], fenced: Sequence[Fenced]) -> None:
        """The async proxy sees what these threads know or have done, where they let it be known."""
        if not self.layout.has_proxies:
            return
        views = [self.layout.view(one) for one in fenced]
        count = self.layout.threads

        def after(row: Times) -> Times:
            changed = row.copy()
            for view in views:
                changed[view : view + count] = np.maximum(row[view : view + count], row[:count])
            return changed

        for view in views:
            self._own[self._columns.index(view), threads] = self.time[threads]
        for mine in _alike(threads, self._near_of):
            row = self._near[int(self._near_of[mine[0]])]
            self._near_of[mine] = self._near.add(after(row)[None], self._near_of)
        for mine in _alike(threads, self._far_of):
            far = self._far[int(self._far_of[mine[0]])]
            if far:
                self._hold_far(mine, {block: row.fenced(tuple(fenced), after) for block, row in far.items()})
        self.time[threads] += 1

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
                used, ranks = ranked(np.append(self._far_of, NOTHING))
                self._far_of = ranks[:-1]
                self._far = [self._far[one] for one in used]
                self._far_limit = max(len(self._far), 64)
            self._far.append(known)
        self._far_of[threads] = len(self._far) - 1

    _far_limit = 64  # as many as are held, or so


def _distinct(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    """In ascending order; they are mostly the same."""
    return numbers[:1] if (numbers == numbers[0]).all() else np.unique(numbers)


def _alike(threads: NDArray[np.intp], held: NDArray[np.intp]) -> Iterable[NDArray[np.intp]]:
    """Parts, in each of which all hold the same."""
    numbers = held[threads]
    if (numbers == numbers[0]).all():
        return [threads]
    return [threads[numbers == number] for number in np.unique(numbers)]

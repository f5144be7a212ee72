"""What engines do for threads, as the race check sees it: each asynchronous access is done by an agent, at some time
between the instruction that asks for it and a wait for it.

An agent begins with what its thread knows when it asks, and nobody knows of its doings until they are said to be done.
`cp.async` has an agent for each thread. Of the others each block has a few, for whom it needs one: bulk copies that a
thread waits for by group have two, of which one only reads; copies that tell an mbarrier object share one for each
object; and so do the products of a warpgroup. A block that needs more than there are has some do two things: what one
of these does counts as done when the other, later one is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch
from simulators.gpu.checks.accumulators import Accumulators
from simulators.gpu.checks.clocks import Clocks
from simulators.gpu.checks.knowledge import Knowledge, Times, joined
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Access, Engine, Key

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

_REMEMBERED = 64  # groups of a thread that it may still wait for
_WARPGROUP = 128
IN_ASYNC_PROXY: tuple[Engine, ...] = ("bulk", "wgmma")


@dataclass
class _Groups:
    """Of one engine, by thread: its time, which ends with each group, and when its latest groups ended."""

    times: Times
    committed: NDArray[np.int64]
    ends: Times  # [threads, groups], in turn

    @staticmethod
    def of(threads: int) -> _Groups:
        return _Groups(
            np.ones(threads, np.int32), np.zeros(threads, np.int64), np.zeros((threads, _REMEMBERED), np.int32)
        )

    def extend(self, threads: int) -> None:
        more = _Groups.of(threads - len(self.times))
        self.times = np.concatenate([self.times, more.times])
        self.committed = np.concatenate([self.committed, more.committed])
        self.ends = np.concatenate([self.ends, more.ends])

    def commit(self, threads: NDArray[np.intp]) -> None:
        self.ends[threads, self.committed[threads] % _REMEMBERED] = self.times[threads]
        self.committed[threads] += 1
        self.times[threads] += 1

    def done(self, threads: NDArray[np.intp], newest: int) -> Times:
        """Up to which times of theirs all is done when only so many groups are left; 0: nothing is."""
        group = self.committed[threads] - newest - 1
        return np.where((group >= 0) & (newest < _REMEMBERED), self.ends[threads, group % _REMEMBERED], np.int32(0))


class Engines:
    """Of all engines: the agents, and who may know what of them."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.accumulators = Accumulators()
        self._num_threads = 0
        self._groups: dict[Engine, _Groups] = {}
        self._agents: dict[tuple[int, Hashable], int] = {}  # by block, and what for: its number
        self._agents_of: Counter[int] = Counter()  # by block
        self._times: Counter[int] = Counter()  # by agent: what it has done for mbarrier objects
        self._promised: dict[Key, tuple[int, int]] = {}  # the latest, to an mbarrier object: the agent, and its time
        self._threads: dict[tuple[int, int], int] = {}  # by agent and time: the number of the thread that asked

    def begin(self, threads: int) -> None:
        """New threads, and none before."""
        self.accumulators.begin()
        self._num_threads = threads
        self._groups = {}
        self._promised = {}

    def extend(self, batch: Batch) -> None:
        self._num_threads = batch.num_threads
        for groups in self._groups.values():
            groups.extend(batch.num_threads)

    def _groups_of(self, engine: Engine) -> _Groups:
        if engine not in self._groups:
            self._groups[engine] = _Groups.of(self._num_threads)
        return self._groups[engine]

    def _agent(self, block: int, purpose: Hashable) -> int:
        if (block, purpose) not in self._agents:
            column = self._clocks.layout.first_agent + self._agents_of[block] % self._clocks.layout.agents
            self._agents_of[block] += 1
            self._agents[block, purpose] = block * self._clocks.layout.span + column
        return self._agents[block, purpose]

    def _warpgroup(self, thread: int) -> int:
        return self._agent(self._clocks.block(thread), ("wgmma", thread % self._clocks.layout.threads // _WARPGROUP))

    # -- what is asked for ------------------------------------------------------------------------------------------

    def marks(self, access: Access) -> tuple[NDArray[np.int64], Times]:
        """Of each access of an engine: by whom it is done, and when."""
        completion, threads = access.completion, access.threads
        assert completion is not None
        if completion.key is not None and completion.engine != "cp.async":
            number, time = self._promised[completion.key]
            self._threads[number, time] = int(self._clocks.numbers(threads[:1])[0])
            return np.full(len(threads), number), np.full(len(threads), time, np.int32)
        times_of = self._groups_of(completion.engine).times
        times = times_of[threads]
        if completion.engine == "cp.async":
            return self._clocks.numbers(threads) + self._clocks.layout.threads, times
        distinct, which = np.unique(threads, return_inverse=True)
        numbers = []
        for thread, time in zip(distinct.tolist(), times_of[distinct], strict=True):
            if completion.engine == "wgmma":
                number = self._warpgroup(thread)
            else:
                number = self._agent(self._clocks.block(thread), ("bulk", thread, access.kind == "read"))
            numbers.append(number)
            self._threads[number, int(time)] = int(self._clocks.numbers(np.array([thread]))[0])
        return np.array(numbers)[which], times

    def asked_by(self, number: int, time: int) -> int:
        """The number of the thread that asked for what an agent did at that time, or of the thread that did it."""
        block, column = divmod(number, self._clocks.layout.span)
        if column < self._clocks.layout.first_agent:
            return block * self._clocks.layout.span + column % self._clocks.layout.threads
        return self._threads[number, time]

    def promise(self, machine: Machine, threads: NDArray[np.intp], key: Key, engine: Engine) -> Knowledge:
        """What is to be known when it is done: all that the threads of one block or more know, or have done or asked
        for."""
        parts = []
        for block in np.unique(self._clocks.blocks(threads)):
            part = threads[self._clocks.blocks(threads) == block]
            if engine == "cp.async":
                groups = self._groups_of(engine)
                parts.append(self._clocks.release(part, groups.times[part]))
                groups.times[part] += 1
            else:
                parts.append(self._clocks.release(part))
        if engine != "cp.async":
            place = place_of(key)
            agent = self._agent(self._clocks.block_in(place // machine.shared.stride), ("mbarrier", place))
            self._times[agent] += 1
            self._promised = {key: (agent, self._times[agent])}
            parts.append(self._clocks.known_of(*self._promised[key]))
        return joined(parts)

    def multiply(self, instruction: Instruction, registers: frozenset[str], threads: NDArray[np.intp]) -> None:
        """Threads have asked for a product, whose accumulators these registers are."""
        groups = self._groups_of("wgmma").committed[threads]
        self.accumulators.issue(instruction, registers, threads, groups, self._num_threads)

    # -- what is waited for -----------------------------------------------------------------------------------------

    def commit(self, threads: NDArray[np.intp], engine: Engine) -> None:
        self._groups_of(engine).commit(threads)

    def complete(self, threads: NDArray[np.intp], engine: Engine, newest: int, *, reads_alone: bool) -> None:
        """Threads have waited until only so many groups are left."""
        times = self._groups_of(engine).done(threads, newest)
        if engine == "cp.async":
            if self._clocks.layout.has_copies:
                self._clocks.finish_copies(threads, times)
            return
        if engine == "wgmma":
            self.accumulators.complete(threads, self._groups_of(engine).committed[threads] - newest)
        threads, times = threads[times > 0], times[times > 0]
        if engine == "wgmma":
            # When one warp knows that a product is done, the kernel may give away what all four have read.
            firsts = threads - threads % self._clocks.layout.threads % _WARPGROUP
            keys = firsts * (1 + int(times.max(initial=0))) + times
            for one in np.unique(keys):
                mine = np.flatnonzero(keys == one)
                agent = self._warpgroup(int(threads[mine[0]]))
                self._clocks.acquire(threads[mine], self._clocks.known_of(agent, int(times[mine[0]])))
            return
        for thread, time in zip(threads.tolist(), times.tolist(), strict=True):
            for for_reads in (True,) if reads_alone else (True, False):
                purpose = self._clocks.block(thread), ("bulk", thread, for_reads)
                if purpose in self._agents:
                    known = self._clocks.known_of(self._agents[purpose], time)
                    self._clocks.acquire(np.array([thread]), known)


def place_of(key: Key) -> int:
    """Of the mbarrier object to which something is promised under that key, in shared memory."""
    place = key[-1]
    assert isinstance(place, int)
    return place

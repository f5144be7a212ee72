"""Data races: two accesses to the same bytes, of which one writes, that nothing orders.

What orders them: a thread's own order, barriers, and releases that are acquired, each as far as its scope reaches.
Accesses that are both strong (`relaxed` and above, and atomics) and reach each other do not race, nor do two writes of
the same value. Of the reads since the last write, three are remembered for each place: the latest, and two that are
not ordered before it. What engines do is compared when it is asked for, and remembered until it is waited for
(`engines`). Reads in the async proxy want a fence besides (`proxies`).
Source: PTX ISA, "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.checks.clocks import Clocks
from simulators.gpu.checks.engines import IN_ASYNC_PROXY, Engines, place_of
from simulators.gpu.checks.findings import Findings, initialises
from simulators.gpu.checks.knowledge import Times
from simulators.gpu.checks.layout import layout_of
from simulators.gpu.checks.proxies import Proxies
from simulators.gpu.checks.releases import Releases
from simulators.gpu.checks.shadow import Marks, Places, Shadow, Shadows, values_of
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import SCOPES, Access, Engine, Fenced, Finding, Key, Order, Scope, Watcher

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

_SHARED: Key = ("shared",)
_CLUSTER, _GPU = 1 + SCOPES.index("cluster"), 1 + SCOPES.index("gpu")  # as a mark's reach


class Races(Watcher):
    """One finding for each pair of instructions that race, or lack a proxy fence."""

    follows_engines = True

    def __init__(self) -> None:
        self._is_begun = False
        self._clocks: Clocks  # as the others, made when the first blocks begin
        self._order: Releases
        self._engines: Engines
        self._proxies: Proxies
        self._found: Findings
        self._shadows = Shadows()

    # -- what happens -----------------------------------------------------------------------------------------------

    def begin(self, machine: Machine) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._clocks = Clocks(layout_of(machine.program.operations, machine.batch.slot_threads))
            self._order = Releases(self._clocks, machine.launch.cluster_blocks)
            self._engines, self._proxies = Engines(self._clocks), Proxies(self._clocks)
            self._found = Findings(self._clocks)
        self._clocks.begin(machine.batch)
        self._order.begin(machine.batch.num_threads)
        self._engines.begin(machine.batch.num_threads)
        self._proxies.begin()
        self._shadows.forget(_SHARED)  # it is new; global memory is not

    def extend(self, machine: Machine) -> None:
        self._clocks.extend(machine.batch)
        self._order.extend(machine.batch)
        self._engines.extend(machine.batch)

    def synchronized(self, machine: Machine, sets: NDArray[np.intp]) -> None:
        self._clocks.synchronize(sets)

    def gathered(self, machine: Machine, arrived: NDArray[np.intp], waited: NDArray[np.intp]) -> None:
        self._order.gather(arrived, waited)

    def fence(self, machine: Machine, threads: Threads, order: Order, scope: Scope) -> None:
        self._order.fence(machine.batch.numbers(threads), scope)

    def proxy_fence(self, machine: Machine, threads: Threads, fenced: Sequence[Fenced]) -> None:
        self._clocks.fence_proxy(machine.batch.numbers(threads), fenced)

    def arrived(self, machine: Machine, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        self._order.arrive(threads, key, is_relaxed=is_relaxed)

    def waited(self, machine: Machine, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        self._order.wait(threads, key, is_relaxed=is_relaxed)

    def committed(self, machine: Machine, threads: NDArray[np.intp], engine: Engine) -> None:
        self._engines.commit(threads, engine)

    def completed(
        self, machine: Machine, threads: NDArray[np.intp], engine: Engine, newest: int, *, reads_alone: bool = False
    ) -> None:
        self._engines.complete(threads, engine, newest, reads_alone=reads_alone)

    def multiplied(
        self, machine: Machine, instruction: Instruction, threads: NDArray[np.intp], registers: frozenset[str]
    ) -> None:
        self._engines.multiply(instruction, registers, threads)

    def executed(self, machine: Machine, first: int, end: int, threads: Threads) -> None:
        if self._engines.accumulators:
            operations, numbers = machine.program.operations[first:end], machine.batch.numbers(threads)
            for instruction, product, thread in self._engines.accumulators.used(operations, numbers):
                self._found.add_accumulator(machine, instruction, product, thread)

    def promised(
        self, machine: Machine, instruction: Instruction, threads: NDArray[np.intp], key: Key, engine: Engine
    ) -> None:
        self._order.promise(key, self._engines.promise(machine, threads, key, engine))
        if engine in IN_ASYNC_PROXY:
            self._check_object(machine, instruction, threads, key)

    def passed_on(self, machine: Machine, key: Key, to: Key) -> None:
        self._order.pass_on(key, to)

    def access(self, machine: Machine, access: Access) -> None:
        if access.space in ("local", "param") or not len(access.threads):
            return
        buffer: Key = _SHARED if access.space == "shared" else ("global", id(access.buffer))
        shadow = self._shadows.of(access, buffer)
        if access.completion is not None:
            self._check(machine, access, shadow, *self._engines.marks(access))
            return
        times = self._clocks.time[access.threads]  # a release lets others know of itself too
        if access.order != "weak":
            self._order.access(access, buffer)
        elif access.kind == "write" and initialises(access.instruction):
            self._proxies.initialise(access, times)
        self._check(machine, access, shadow, self._clocks.numbers(access.threads), times)

    # -- conflicts --------------------------------------------------------------------------------------------------

    def _check(
        self, machine: Machine, access: Access, shadow: Shadow, numbers: NDArray[np.int64], times: Times
    ) -> None:
        """numbers: of who does each access, at which time of theirs."""
        granule = shadow.granule
        per_access = access.size // granule
        places, threads = access.offsets >> (granule.bit_length() - 1), access.threads
        if per_access > 1:
            places = (places[:, None] + np.arange(per_access)).ravel()
            threads, numbers = np.repeat(threads, per_access), np.repeat(numbers, per_access)
            times = np.repeat(times, per_access)
        reach = 0 if access.order == "weak" else 1 + SCOPES.index(access.scope)
        number, values = self._found.number(access.instruction), values_of(access, granule, per_access)
        own = Marks.of(numbers, times, number, reach, values)
        written = shadow.write.at(places)
        self._compare(machine, access, granule, places, threads, own, written, between_writes=access.kind == "write")
        if access.kind == "read":
            if access.completion is not None and access.completion.engine in IN_ASYNC_PROXY:
                self._check_proxies(machine, access, granule, places, threads, written)
            self._remember_reads(shadow, places, threads, own)
            return
        read = np.flatnonzero(shadow.latest.at(places).exist)
        if len(read):
            for kept in shadow.reads:
                marks = kept.at(places[read])
                self._compare(machine, access, granule, places[read], threads[read], own[read], marks)
            for kept in shadow.reads:
                kept.clear(places[read])
        shadow.write.put(places, own)
        if reach < _GPU and (shadow.write.at(places).words[:, 0] != own.words[:, 0]).any():
            self._check_within(machine, access, granule, places, threads, own)

    def _remember_reads(self, shadow: Shadow, places: Places, threads: NDArray[np.intp], own: Marks) -> None:
        """The latest read of a place takes the place of the one before. If it is not ordered after that one, the one
        before is kept beside it, if there is room."""
        before = shadow.latest.at(places)
        shadow.latest.put(places, own)
        # Of several threads that read one place at once, one is the latest now.
        is_latest = shadow.latest.at(places).words[:, 0] == own.words[:, 0]
        unordered = np.flatnonzero(is_latest & before.exist)
        if len(unordered):
            unordered = unordered[self._are_unordered(threads[unordered], before[unordered], own[unordered])]
        lost = np.flatnonzero(~is_latest)
        if not len(lost) + len(unordered):
            return
        at = np.concatenate([unordered, lost])
        evicted = np.concatenate([before.records[unordered], own.records[lost]])
        for kept, turn in ((shadow.first, 0), (shadow.other, len(at) // 2)):
            # Of several at one place the first is kept, and then one from the middle.
            order = np.roll(np.arange(len(at))[::-1], turn)
            order = order[shadow.last_of_each(places[at[order]])]
            held = kept.at(places[at[order]])
            full = np.flatnonzero(held.exist)
            if len(full):
                later = at[order[full]]
                order = np.delete(order, full[self._are_unordered(threads[later], held[full], own[later])])
            kept.put(places[at[order]], Marks.of_records(evicted[order]))
            at, evicted = np.delete(at, order), np.delete(evicted, order)
            if not len(at):
                return

    def _are_unordered(self, threads: NDArray[np.intp], before: Marks, own: Marks | None = None) -> NDArray[np.bool_]:
        """Are accesses by, or for, these threads not ordered after those, pair by pair? own: who does them, of which
        the later knows of what it did before."""
        others = before.threads
        differs = others != self._clocks.numbers(threads)
        if own is not None and self._clocks.layout.has_engines:
            differs &= others != own.threads
        differ = np.flatnonzero(differs)
        result = np.zeros(len(threads), np.bool_)
        if len(differ):
            result[differ] = before.times[differ] > self._clocks.knows(threads[differ], others[differ])
        return result

    def _compare(
        self,
        machine: Machine,
        access: Access,
        granule: int,
        places: Places,
        threads: NDArray[np.intp],
        own: Marks,
        before: Marks,
        *,
        between_writes: bool = False,
    ) -> None:
        which = np.flatnonzero(before.exist)
        if not len(which):
            return
        which = which[self._are_unordered(threads[which], before[which])]
        if not len(which):
            return
        own, before = own[which], before[which]
        races = ~self._are_morally_strong(machine, own, before)
        if between_writes:
            races &= (own.values != before.values) | (own.values == 0)
        for instruction in np.unique(before.instructions[races]):
            one = np.flatnonzero(races & (before.instructions == instruction))[0]
            other = self._engines.asked_by(int(before.threads[one]), int(before.times[one]))
            thread, byte = int(threads[which[one]]), granule * int(places[which[one]])
            self._found.add_race(machine, access, int(instruction), thread, other, byte)

    def _are_morally_strong(self, machine: Machine, one: Marks, other: Marks) -> NDArray[np.bool_]:
        """Are both strong, and does each one's scope hold the other's thread?"""
        least = np.minimum(one.reaches, other.reaches)
        blocks, others = one.threads // self._clocks.layout.span, other.threads // self._clocks.layout.span
        of_cluster = machine.launch.cluster_blocks
        same_cluster = blocks // of_cluster == others // of_cluster
        return (least >= _GPU) | (least > 0) & ((blocks == others) | (least == _CLUSTER) & same_cluster)

    def _check_within(
        self,
        machine: Machine,
        access: Access,
        granule: int,
        places: Places,
        threads: NDArray[np.intp],
        own: Marks,
    ) -> None:
        """Threads that write to one place in one instruction: other values than each other, or beyond their scope."""
        order = np.argsort(places, kind="stable")
        pairs = np.flatnonzero(np.diff(places[order]) == 0)
        if not len(pairs):
            return
        first, second = order[pairs], order[pairs + 1]
        races = threads[first] != threads[second]
        races &= ~self._are_morally_strong(machine, own[first], own[second])
        if access.kind == "write":
            races &= (own.values[first] != own.values[second]) | (own.values[first] == 0)
        if races.any():
            one, other = (int(side[races][0]) for side in (second, first))
            pair = int(threads[one]), int(self._clocks.numbers(threads)[other])
            self._found.add_race(
                machine, access, self._found.number(access.instruction), *pair, granule * int(places[one])
            )

    # -- proxies ----------------------------------------------------------------------------------------------------

    def _check_proxies(
        self,
        machine: Machine,
        access: Access,
        granule: int,
        places: Places,
        threads: NDArray[np.intp],
        written: Marks,
    ) -> None:
        fenced: Fenced = "shared" if access.space == "shared" else "global"
        unseen = np.flatnonzero(self._proxies.unseen(threads, written, fenced))
        for instruction in np.unique(written.instructions[unseen]):
            one = unseen[np.flatnonzero(written.instructions[unseen] == instruction)[0]]
            thread, other = int(threads[one]), int(written.threads[one])
            self._found.add_unseen(machine, access, int(instruction), thread, other, granule * int(places[one]))

    def _check_object(self, machine: Machine, instruction: Instruction, threads: NDArray[np.intp], key: Key) -> None:
        place = place_of(key)
        made = self._proxies.unseen_object(place, threads)
        if made is not None:
            self._found.add_unseen_object(machine, instruction, int(threads[0]), place, made)

    def findings(self) -> Sequence[Finding]:
        return self._found.findings if self._is_begun else ()

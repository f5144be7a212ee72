"""Data races: two accesses to the same bytes, of which one writes, that nothing orders.

What orders them: a thread's own order, barriers, and releases that are acquired, each as far as its scope reaches.
Accesses that are both strong (`relaxed` and above, and atomics) and reach each other do not race, nor do two writes of
the same value. Of the reads since the last write, three are remembered for each place: the latest, and two that are
not ordered before it. Copies that are done asynchronously are not followed.
Source: PTX ISA, "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.checks.clocks import Clocks
from simulators.gpu.checks.knowledge import Times
from simulators.gpu.checks.releases import Key, Releases
from simulators.gpu.checks.shadow import Marks, Places, Shadow, values_of
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import SCOPES, Access, Finding, Order, Scope, Watcher

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

_MOST_FINDINGS = 100
_CLUSTER, _GPU = 1 + SCOPES.index("cluster"), 1 + SCOPES.index("gpu")  # as a mark's reach


class Races(Watcher):
    """One finding for each pair of instructions that race."""

    def __init__(self) -> None:
        self._clocks = Clocks()
        self._releases: Releases | None = None
        self._shadows: dict[Key, Shadow] = {}
        self._held: list[object] = []  # the buffers, so that their ids stay their own
        self._numbers: dict[int, int] = {}  # of instructions, by id: they are held below
        self._instructions: list[Instruction] = []
        self._found: dict[tuple[int, int], Finding] = {}

    # -- what happens -----------------------------------------------------------------------------------------------

    def begin(self, machine: Machine) -> None:
        self._clocks.begin(machine.batch)
        if self._releases is None:
            self._releases = Releases(self._clocks, machine.launch.cluster_blocks)
        self._releases.begin(machine.batch.num_threads)
        self._shadows.pop(("shared",), None)  # it is new; global memory is not

    def extend(self, machine: Machine) -> None:
        self._clocks.extend(machine.batch)
        self._order.extend(machine.batch)

    @property
    def _order(self) -> Releases:
        assert self._releases is not None  # made when the first blocks begin
        return self._releases

    def synchronized(self, machine: Machine, sets: NDArray[np.intp]) -> None:
        self._clocks.synchronize(sets)

    def gathered(self, machine: Machine, arrived: NDArray[np.intp], waited: NDArray[np.intp]) -> None:
        self._order.gather(arrived, waited)

    def fence(self, machine: Machine, threads: Threads, order: Order, scope: Scope) -> None:
        self._order.fence(machine.batch.numbers(threads), scope)

    def arrived(self, machine: Machine, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        self._order.arrive(threads, key, is_relaxed=is_relaxed)

    def waited(self, machine: Machine, threads: NDArray[np.intp], key: Key) -> None:
        self._order.wait(threads, key)

    def access(self, machine: Machine, access: Access) -> None:
        if access.is_asynchronous or access.space in ("local", "param") or not len(access.threads):
            return
        buffer: Key = ("shared",) if access.space == "shared" else ("global", id(access.buffer))
        times = self._clocks.time[access.threads]  # a release lets others know of itself too
        if access.order != "weak":
            self._order.access(access, buffer)
        self._check(machine, access, self._shadow(access, buffer), times)

    # -- conflicts --------------------------------------------------------------------------------------------------

    def _check(self, machine: Machine, access: Access, shadow: Shadow, times: Times) -> None:
        granule = shadow.granule
        per_access = access.size // granule
        places, threads = access.offsets >> (granule.bit_length() - 1), access.threads
        if per_access > 1:
            places = (places[:, None] + np.arange(per_access)).ravel()
            threads, times = np.repeat(threads, per_access), np.repeat(times, per_access)
        reach = 0 if access.order == "weak" else 1 + SCOPES.index(access.scope)
        own = Marks.of(
            self._clocks.base + threads,
            times,
            self._number(access.instruction),
            reach,
            values_of(access, granule, per_access),
        )
        written = shadow.write.at(places)
        self._compare(machine, access, granule, places, threads, own, written, between_writes=access.kind == "write")
        if access.kind == "read":
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
            unordered = unordered[self._are_unordered(threads[unordered], before[unordered])]
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
                order = np.delete(order, full[self._are_unordered(threads[at[order[full]]], held[full])])
            kept.put(places[at[order]], Marks.of_records(evicted[order]))
            at, evicted = np.delete(at, order), np.delete(evicted, order)
            if not len(at):
                return

    def _are_unordered(self, threads: NDArray[np.intp], before: Marks) -> NDArray[np.bool_]:
        """Are accesses of these threads not ordered after those, pair by pair?"""
        others = before.threads
        differ = np.flatnonzero(others != self._clocks.base + threads)
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
            thread, other = int(threads[which[one]]), int(before.threads[one])
            self._tell(machine, access, int(instruction), thread, other, granule * int(places[which[one]]))

    def _are_morally_strong(self, machine: Machine, one: Marks, other: Marks) -> NDArray[np.bool_]:
        """Are both strong, and does each one's scope hold the other's thread?"""
        least = np.minimum(one.reaches, other.reaches)
        blocks, others = one.threads // self._clocks.slot_threads, other.threads // self._clocks.slot_threads
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
            races &= own.values[first] != own.values[second]
        if races.any():
            one, other = (int(side[races][0]) for side in (second, first))
            pair = int(threads[one]), self._clocks.base + int(threads[other])
            self._tell(machine, access, self._number(access.instruction), *pair, granule * int(places[one]))

    def _tell(self, machine: Machine, access: Access, other: int, thread: int, other_thread: int, byte: int) -> None:
        pair = self._number(access.instruction), other
        if pair in self._found or len(self._found) >= _MOST_FINDINGS:
            return
        before = self._instructions[other]
        byte -= access.start
        where = f"{access.allocation!r} byte {byte}" if access.space == "global" else f"shared memory byte {byte}"
        message = (
            f"{machine.batch.describe(thread)} does {access.instruction.text} and {self._name(machine, other_thread)} "
            f"does {before.text} ({before.place}), both at {where}, and nothing orders them"
        )
        self._found[pair] = Finding("race", message, access.instruction.place)

    def _name(self, machine: Machine, thread: int) -> str:
        if thread >= self._clocks.base:
            return machine.batch.describe(thread - self._clocks.base)
        return "a thread of an earlier block"

    def _shadow(self, access: Access, buffer: Key) -> Shadow:
        size = len(access.buffer.bytes)
        if buffer not in self._shadows:
            self._shadows[buffer] = Shadow(size, access.size)
            self._held.append(access.buffer)
        shadow = self._shadows[buffer]
        if access.size < shadow.granule:
            shadow.split(access.size)
        if size > shadow.size:
            shadow.extend(size)
        return shadow

    def _number(self, instruction: Instruction) -> int:
        number = self._numbers.get(id(instruction))
        if number is None:
            number = self._numbers[id(instruction)] = len(self._instructions)
            self._instructions.append(instruction)
        return number

    def findings(self) -> Sequence[Finding]:
        return tuple(self._found.values())

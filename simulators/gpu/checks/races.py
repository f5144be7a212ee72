"""Data races: two accesses to the same bytes, of which one writes, that nothing orders.

What orders them: a thread's own order, barriers, and releases that are acquired, each as far as its scope reaches.
Accesses that are both strong (`relaxed` and above, and atomics) and reach each other do not race.
Of the reads since the last write, the first and the latest are remembered for each place, so that a write is held
against two readers, not against all. Copies that are done asynchronously are not followed.
Source: PTX ISA, "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.checks.clocks import Clocks, Times
from simulators.gpu.machine.operation import Straight
from simulators.gpu.ptx.module import Instruction, Place
from simulators.gpu.watch import Access, Finding, Order, Scope, Watcher

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

_NOBODY = -1
_SCOPES: tuple[Scope, ...] = ("cta", "cluster", "gpu", "sys")
_MOST_FINDINGS = 100


class _Marks:
    """Of each place, who accessed it last in one way: thread, its time, its instruction, and how far it reaches if it
    was strong (0: weak)."""

    def __init__(self, places: int) -> None:
        self.thread = np.full(places, _NOBODY, np.int64)
        self.time = np.zeros(places, np.int32)
        self.instruction = np.zeros(places, np.int32)
        self.reach = np.zeros(places, np.int8)

    def put(self, places: NDArray[np.intp], threads: NDArray[np.int64], times: Times, pc: int, reach: int) -> None:
        self.thread[places] = threads
        self.time[places] = times
        self.instruction[places] = pc
        self.reach[places] = reach

    def extended(self, places: int) -> _Marks:
        longer = _Marks(places)
        for name in vars(self):
            getattr(longer, name)[: len(getattr(self, name))] = getattr(self, name)
        return longer


class _Shadow:
    """What is remembered of one buffer."""

    def __init__(self, places: int) -> None:
        self.write, self.first_read, self.latest_read = (_Marks(places) for _ in range(3))

    def extend(self, places: int) -> None:
        for name, marks in vars(self).items():
            setattr(self, name, marks.extended(places))


@dataclass
class _Released:
    """What was released at a place."""

    known: Times
    scope: Scope
    block: int
    version: int


class Races(Watcher):
    """One finding for each pair of instructions that race."""

    def __init__(self) -> None:
        self._clocks = Clocks()
        self._shadows: dict[int, _Shadow] = {}  # by the buffer's id
        self._held: list[object] = []  # the buffers, so that their ids stay their own
        self._numbers: dict[Place, int] = {}  # of instructions
        self._instructions: list[Instruction] = []
        self._blocks: list[tuple[int, int, int]] = []  # of the batches so far
        self._released: dict[tuple[object, ...], _Released] = {}
        self._fenced: dict[int, tuple[Times, Scope]] = {}  # by thread: what it knew at its last fence
        self._seen: dict[int, list[tuple[Times, Scope, int]]] = {}  # by thread: what its next fence acquires
        self._learned: dict[tuple[int, tuple[object, ...]], int] = {}  # the version that a thread acquired last
        self._versions = 0
        self._granule = 1
        self._found: dict[tuple[int, int], Finding] = {}

    # -- what happens -----------------------------------------------------------------------------------------------

    def begin(self, machine: Machine) -> None:
        self._clocks.begin(machine.batch)
        self._granule = _smallest_access(machine)
        # Shared and local memory are new; global memory is not.
        self._fenced, self._seen, self._learned = {}, {}, {}

    def extend(self, machine: Machine) -> None:
        self._clocks.extend(machine.batch)

    def synchronized(self, machine: Machine, threads: Sequence[NDArray[np.intp]]) -> None:
        self._clocks.synchronize(threads)

    def fence(self, machine: Machine, threads: Threads, order: Order, scope: Scope) -> None:
        for thread in machine.batch.numbers(threads):
            one = np.array([thread])
            for known, released_scope, block in self._seen.pop(int(thread), []):
                if self._reaches(machine, int(thread), released_scope, block) and _wider(scope, released_scope):
                    self._clocks.acquire(one, known)
            self._fenced[int(thread)] = self._clocks.release(one), scope

    def arrived(self, machine: Machine, threads: NDArray[np.intp], key: tuple[object, ...]) -> None:
        for part in _by_block(machine, threads):
            known = self._clocks.release(part)
            self._join(key, known, "sys", int(machine.batch.slot[part[0]]))

    def waited(self, machine: Machine, threads: NDArray[np.intp], key: tuple[object, ...]) -> None:
        released = self._released.get(key)
        if released is not None:
            for part in _by_block(machine, threads):
                self._clocks.acquire(part, released.known)

    def access(self, machine: Machine, access: Access) -> None:
        if access.is_asynchronous or access.space in ("local", "param"):
            return
        if access.order != "weak":
            self._order(machine, access)
        self._check(machine, access)

    # -- release and acquire ----------------------------------------------------------------------------------------

    def _order(self, machine: Machine, access: Access) -> None:
        """One thread after the other, as atomics at one place are."""
        for thread, offset in zip(access.threads.tolist(), access.offsets.tolist(), strict=True):
            key = (id(access.buffer), offset)
            if access.kind != "write":
                self._acquire(machine, access, thread, key)
            if access.kind != "read":
                self._release(machine, access, thread, key)

    def _acquire(self, machine: Machine, access: Access, thread: int, key: tuple[object, ...]) -> None:
        released = self._released.get(key)
        if released is None or not self._reaches(machine, thread, released.scope, released.block):
            return
        if self._learned.get((thread, key)) == released.version:
            return
        if access.order in ("acquire", "acq_rel"):
            if not self._reaches(machine, thread, access.scope, released.block):
                return
            self._learned[thread, key] = released.version
            self._clocks.acquire(np.array([thread]), released.known)
        else:
            self._seen.setdefault(thread, []).append((released.known, released.scope, released.block))

    def _release(self, machine: Machine, access: Access, thread: int, key: tuple[object, ...]) -> None:
        block = int(machine.batch.slot[thread])
        if access.order in ("release", "acq_rel"):
            known, scope = self._clocks.release(np.array([thread])), access.scope
        elif thread in self._fenced:
            known, scope = self._fenced[thread]
            scope = scope if _wider(access.scope, scope) else access.scope
        else:
            if access.kind == "write":
                self._released.pop(key, None)  # what is read from now on is not what was released
            return
        if access.kind == "write":
            self._released.pop(key, None)
        self._join(key, known, scope, block)

    def _join(self, key: tuple[object, ...], known: Times, scope: Scope, block: int) -> None:
        self._versions += 1
        before = self._released.get(key)
        if before is None:
            self._released[key] = _Released(known, scope, block, self._versions)
            return
        size = max(len(known), len(before.known))
        joined = np.maximum(np.pad(known, (0, size - len(known))), np.pad(before.known, (0, size - len(before.known))))
        self._released[key] = _Released(joined, scope, block, self._versions)

    @staticmethod
    def _reaches(machine: Machine, thread: int, scope: Scope, block: int) -> bool:
        """Is the thread within that scope of something that the block's threads did?"""
        own = int(machine.batch.slot[thread])
        of_cluster = machine.launch.cluster_blocks
        return (
            scope in ("gpu", "sys") or own == block or (scope == "cluster" and own // of_cluster == block // of_cluster)
        )

    # -- conflicts --------------------------------------------------------------------------------------------------

    def _check(self, machine: Machine, access: Access) -> None:
        shadow = self._shadow(access)
        per_access = max(access.size // self._granule, 1)
        places = (access.offsets // self._granule)[:, None] + np.arange(per_access)
        flat = places.ravel()
        threads = np.repeat(access.threads, per_access)
        number = self._number(access.instruction)
        reach = 0 if access.order == "weak" else 1 + _SCOPES.index(access.scope)
        self._compare(machine, access, number, flat, threads, reach, shadow.write)
        if access.kind != "read":
            self._compare(machine, access, number, flat, threads, reach, shadow.first_read)
            self._compare(machine, access, number, flat, threads, reach, shadow.latest_read)
            if access.order == "weak" or access.scope in ("cta", "cluster"):
                self._check_within(machine, access, number, flat, threads)
        ids = self._clocks.base + threads.astype(np.int64)
        times = self._clocks.time[threads]
        if access.kind != "write":
            if access.kind == "read":
                first = shadow.first_read.thread[flat] == _NOBODY
                shadow.first_read.put(flat[first], ids[first], times[first], number, reach)
            shadow.latest_read.put(flat, ids, times, number, reach)
        if access.kind != "read":
            shadow.write.put(flat, ids, times, number, reach)
            shadow.first_read.thread[flat] = _NOBODY
            shadow.latest_read.thread[flat] = _NOBODY

    def _compare(
        self,
        machine: Machine,
        access: Access,
        number: int,
        places: NDArray[np.intp],
        threads: NDArray[np.intp],
        reach: int,
        marks: _Marks,
    ) -> None:
        others = marks.thread[places]
        which = np.flatnonzero((others != _NOBODY) & (others != self._clocks.base + threads))
        if not len(which):
            return
        unordered = marks.time[places[which]] > self._clocks.knows(threads[which], others[which])
        which = which[unordered]
        if reach:
            both_strong = marks.reach[places[which]] > 0
            which = which[~(both_strong & self._both_reach(machine, marks, places[which], threads[which], reach))]
        for instruction in np.unique(marks.instruction[places[which]]):
            one = which[marks.instruction[places[which]] == instruction][0]
            self._tell(machine, access, number, int(instruction), int(threads[one]), int(others[one]), int(places[one]))

    def _both_reach(
        self, machine: Machine, marks: _Marks, places: NDArray[np.intp], threads: NDArray[np.intp], reach: int
    ) -> NDArray[np.bool_]:
        """Does each strong access's scope hold the other's thread?"""
        least = np.minimum(marks.reach[places], reach)
        own = (self._clocks.base + threads) // machine.batch.slot_threads
        other = marks.thread[places] // machine.batch.slot_threads
        of_cluster = machine.launch.cluster_blocks
        return (least >= 3) | (own == other) | ((least == 2) & (own // of_cluster == other // of_cluster))

    def _check_within(
        self,
        machine: Machine,
        access: Access,
        number: int,
        places: NDArray[np.intp],
        threads: NDArray[np.intp],
    ) -> None:
        """Threads that write to one place in one instruction: other values than each other, or beyond their scope."""
        order = np.argsort(places, kind="stable")
        first, second = order[:-1], order[1:]
        meets = (places[first] == places[second]) & (threads[first] != threads[second])
        per_access = len(places) // len(access.threads)
        for one, other in zip(first[meets].tolist(), second[meets].tolist(), strict=True):
            if access.order == "weak":
                one_value, other_value = one // per_access, other // per_access
                differ = any(np.ndim(value) and value[one_value] != value[other_value] for value in access.values)
            else:
                differ = not self._reaches(
                    machine, int(threads[other]), access.scope, int(machine.batch.slot[threads[one]])
                )
            if differ:
                pair = int(threads[other]), self._clocks.base + int(threads[one])
                self._tell(machine, access, number, number, *pair, int(places[one]))
                return

    def _tell(
        self, machine: Machine, access: Access, number: int, other: int, thread: int, other_thread: int, place: int
    ) -> None:
        if (number, other) in self._found or len(self._found) >= _MOST_FINDINGS:
            return
        before = self._instructions[other]
        byte = place * self._granule - access.start
        where = f"{access.allocation!r} byte {byte}" if access.space == "global" else f"shared memory byte {byte}"
        message = (
            f"{machine.batch.describe(thread)} does {access.instruction.text} and {self._name(machine, other_thread)} "
            f"does {before.text} ({before.place}), both at {where}, and nothing orders them"
        )
        self._found[number, other] = Finding("race", message, access.instruction.place)

    def _name(self, machine: Machine, thread: int) -> str:
        if thread >= self._clocks.base:
            return machine.batch.describe(thread - self._clocks.base)
        return "a thread of an earlier block"

    def _shadow(self, access: Access) -> _Shadow:
        key = id(access.buffer)
        places = -(-len(access.buffer.bytes) // self._granule)
        if key not in self._shadows:
            self._shadows[key] = _Shadow(places)
            self._held.append(access.buffer)
        return self._shadows[key]

    def _number(self, instruction: Instruction) -> int:
        if instruction.place not in self._numbers:
            self._numbers[instruction.place] = len(self._instructions)
            self._instructions.append(instruction)
        return self._numbers[instruction.place]

    def findings(self) -> Sequence[Finding]:
        return tuple(self._found.values())


def _wider(scope: Scope, other: Scope) -> bool:
    return _SCOPES.index(scope) >= _SCOPES.index(other)


def _by_block(machine: Machine, threads: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    slots = machine.batch.slot[threads]
    return [threads[slots == slot] for slot in np.unique(slots)]


def _smallest_access(machine: Machine) -> int:
    """Bytes: no two accesses of the kernel overlap in less."""
    sizes = [
        int(modifier.lstrip("bsuf"))
        for operation in machine.program.operations
        if isinstance(operation, Straight) and operation.instruction.opcode in ("ld", "st", "atom", "red", "ldu")
        for modifier in operation.instruction.modifiers
        if modifier[0] in "bsuf" and modifier[1:].isdigit() and ".param" not in operation.instruction.text
    ]
    return min([size // 8 for size in sizes if size >= 8], default=1)

"""The objects that `mbarrier` instructions work on: 64 bits of shared memory, where the kernel put them.

A word holds all that PTX says an object has: bit 63 that it is one, bit 61 the phase's parity, bits 40-60 the
transactions that are still expected (signed), bits 20-39 the arrivals that each phase expects, bits 0-19 those that
this phase still waits for. Besides the words there is a copy of each, by which an object that a store has overwritten
is told from a good one, and the number of its phase, for those who watch.

Source: PTX ISA, "Asynchronous synchronization: mbarrier".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.machine.access import Way, targets, turns
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.waiting import name_threads
from simulators.gpu.memory.spaces import SHARED_BASE
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Key, Kind, Order

Array = NDArray[Any]
LIMIT = (1 << 20) - 1  # of counts, and of expected transactions in either direction
WIDTH = 8  # bytes of an object
_FIELD = np.uint64(LIMIT)
_VALID, _PARITY = np.uint64(1 << 63), np.uint64(1 << 61)
_EXPECTED, _TRANSACTIONS = np.uint64(20), np.uint64(40)
_SIGN = np.int64(1 << 20)  # of a transaction count of 21 bits


class Barriers:
    """All mbarrier objects of the resident blocks. A row is an object's place in shared memory, in units of 8 bytes."""

    def __init__(self) -> None:
        self._words = np.zeros(0, np.uint64)  # by row; 0: no object
        self._phases = np.zeros(0, np.int64)  # by row: the number of the phase that is not complete
        self._row_seen = np.zeros(0, np.int64)  # by thread: the object at which it has last looked in vain, or -1
        self._parity_seen = np.zeros(0, np.bool_)  # by thread: the phase it looked for

    # -- places ---------------------------------------------------------------------------------------------------

    def rows(
        self, machine: Machine, instruction: Instruction, space: str, addresses: Array, threads: Array, kind: Kind
    ) -> NDArray[np.intp]:
        """Where the objects at u64 addresses [N] are. Errors: SimulatorError for what is not in shared memory."""
        self._grow(machine)
        way = Way(instruction, space, WIDTH, order="weak" if kind == "write" else "relaxed", scope="cluster")
        rows = np.empty(len(addresses), np.intp)
        for target in targets(machine, way, addresses, threads, kind):
            if target.space != "shared":
                thread = int(threads[0 if target.which is None else target.which[0]])
                raise machine.fault(instruction, thread, f"an mbarrier object is not in {target.space} memory")
            rows[slice(None) if target.which is None else target.which] = target.offsets // WIDTH
        return rows

    def _grow(self, machine: Machine) -> None:
        more = len(machine.shared.buffer.bytes) // WIDTH - len(self._words)
        if more:
            self._words = np.concatenate([self._words, np.zeros(more, np.uint64)])
            self._phases = np.concatenate([self._phases, np.zeros(more, np.int64)])
        more = machine.batch.num_threads - len(self._row_seen)
        if more:
            self._row_seen = np.concatenate([self._row_seen, np.full(more, -1, np.int64)])
            self._parity_seen = np.concatenate([self._parity_seen, np.zeros(more, np.bool_)])

    @staticmethod
    def _memory(machine: Machine) -> Array:
        return machine.shared.buffer.view(WIDTH)

    def key(self, row: int, ago: int = 0) -> Key:
        """What those who watch know a phase by: the present one, or one that many before."""
        return "mbarrier", int(row) * WIDTH, int(self._phases[row]) - ago

    def _checked(self, machine: Machine, instruction: Instruction, threads: Array, rows: Array) -> Array:
        """The words. Errors: SimulatorError where no object is."""
        words = self._memory(machine)[rows]
        wrong = (words != self._words[rows]) | (words & _VALID == 0)
        if wrong.any():
            which = int(np.flatnonzero(wrong)[0])
            known = "has been overwritten" if self._words[rows[which]] & _VALID else "is not initialised"
            raise machine.fault(instruction, int(threads[which]), f"the mbarrier object {known}")
        return words

    # -- instructions ---------------------------------------------------------------------------------------------

    def initialize(
        self, machine: Machine, instruction: Instruction, threads: Array, rows: Array, counts: Array
    ) -> None:
        counts = counts.astype(np.int64)
        wrong = (counts < 1) | (counts > LIMIT)
        if wrong.any():
            which = int(np.flatnonzero(wrong)[0])
            raise machine.fault(instruction, int(threads[which]), f"{counts[which]} arrivals; it must be 1 to {LIMIT}")
        words = _packed(np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64), counts, counts)
        memory = self._memory(machine)
        # Several threads may initialise one object alike, as long as nobody has used it.
        before = self._words[rows]
        is_object = (before & _VALID != 0) & (memory[rows] == before)
        _, transactions, expected, pending = _fields(before)
        used = is_object & ((transactions != 0) | (pending != expected))
        if used.any():
            which = int(np.flatnonzero(used)[0])
            message = "the mbarrier object is in the middle of a phase; mbarrier.inval has to come before"
            raise machine.fault(instruction, int(threads[which]), message)
        memory[rows] = self._words[rows] = words
        self._phases[rows] = (self._phases[rows] + 2) & ~1  # even, as its parity is, and no phase that has been
        machine.changes += 1

    def invalidate(self, machine: Machine, instruction: Instruction, threads: Array, rows: Array) -> None:
        self._checked(machine, instruction, threads, rows)
        self._memory(machine)[rows] = self._words[rows] = np.uint64(0)

    def apply(
        self,
        machine: Machine,
        instruction: Instruction,
        threads: Array,
        rows: Array,
        *,
        arrivals: Array,
        transactions: Array,
        drops: bool = False,
        order: Order | None = None,
    ) -> Array:
        """Thread after thread: expect so many transactions more (fewer, if negative), then arrive so many times (as
        many more arrivals are waited for, if negative). All int64 [N]. order: of the threads' own arrivals, "release"
        or "relaxed"; None: none are. Returns the words before, u64 [N]."""
        if len(rows) == 0:
            return np.empty(0, np.uint64)
        self._checked(machine, instruction, threads, rows)
        distinct, inverse = np.unique(rows, return_inverse=True)
        if len(distinct) == len(rows):
            return self._apply_once(machine, instruction, threads, rows, arrivals, transactions, drops, order)
        totals = np.bincount(inverse, arrivals).astype(np.int64)
        words = self._memory(machine)[distinct]
        pending = _fields(words)[3]
        if (totals <= pending).all() and (arrivals >= 0).all():
            # No phase ends before the last arrival, so one update does for all.
            earlier = _earlier(inverse, arrivals)
            parity, tx, expected, pending = (field[inverse] for field in _fields(words))
            last = np.zeros(len(distinct), np.intp)
            last[inverse] = np.arange(len(rows))
            total_tx = np.bincount(inverse, transactions).astype(np.int64)
            self._tell_arrived(machine, threads, rows, order)
            self._apply_once(machine, instruction, threads[last], distinct, totals, total_tx, drops, None)
            return _packed(parity, tx, expected, pending - earlier)
        before = np.empty(len(rows), np.uint64)
        for turn in turns(rows):
            before[turn] = self._apply_once(
                machine, instruction, threads[turn], rows[turn], arrivals[turn], transactions[turn], drops, order
            )
        return before

    def _apply_once(
        self,
        machine: Machine,
        instruction: Instruction,
        threads: Array,
        rows: Array,
        arrivals: Array,
        transactions: Array,
        drops: bool,
        order: Order | None,
    ) -> Array:
        """For distinct rows."""
        words = self._memory(machine)[rows]
        parity, tx, expected, pending = _fields(words)
        left, tx = pending - arrivals, tx + transactions
        if (wrong := (left < 0) | (left > LIMIT)).any():
            which = int(np.flatnonzero(wrong)[0])
            message = (
                f"it arrives {arrivals[which]} times at an mbarrier whose phase waits for {pending[which]} arrivals"
            )
            raise machine.fault(instruction, int(threads[which]), message)
        if (wrong := abs(tx) > LIMIT).any():
            which = int(np.flatnonzero(wrong)[0])
            message = f"the mbarrier would expect {tx[which]} bytes of transactions; the limit is {LIMIT}"
            raise machine.fault(instruction, int(threads[which]), message)
        self._tell_arrived(machine, threads, rows, order)
        if drops:
            expected = expected - arrivals
        complete = (left == 0) & (tx == 0)
        left = np.where(complete, expected, left)
        self._phases[rows] += complete
        machine.changes += 1
        self._memory(machine)[rows] = self._words[rows] = _packed(parity ^ complete, tx, expected, left)
        return words

    def _tell_arrived(self, machine: Machine, threads: Array, rows: Array, order: Order | None) -> None:
        for watcher in machine.watchers if order else ():
            for row in np.unique(rows):
                watcher.arrived(machine, threads[rows == row], self.key(row), is_relaxed=order == "relaxed")

    def is_complete(
        self, machine: Machine, instruction: Instruction, threads: Array, rows: Array, parity: Array
    ) -> NDArray[np.bool_]:
        """Has the phase of that parity (bool [N]) ended, of the present one and the one before?"""
        return (self._checked(machine, instruction, threads, rows) & _PARITY != 0) != parity

    def looked(
        self, machine: Machine, threads: Array, rows: Array, parity: Array, done: Array, *, acquires: bool
    ) -> None:
        """Threads have been told whether a phase has ended."""
        self._row_seen[threads] = np.where(done, -1, rows)
        self._parity_seen[threads] = parity
        for watcher in machine.watchers:
            for row in np.unique(rows[done]):
                watcher.waited(machine, threads[done & (rows == row)], self.key(row, 1), is_relaxed=not acquires)

    # -- who waits --------------------------------------------------------------------------------------------------

    def exited(self, machine: Machine) -> None:
        pass

    def waits(self, machine: Machine) -> Iterator[str]:
        self._grow(machine)
        threads = np.flatnonzero((self._row_seen >= 0) & machine.batch.alive)
        rows = self._row_seen[threads]
        parities = (self._memory(machine)[rows] & _PARITY != 0) == self._parity_seen[threads]
        threads, rows = threads[parities], rows[parities]
        for row in np.unique(rows):
            _, tx, expected, pending = (int(field[0]) for field in _fields(self._words[row : row + 1]))
            slot, offset = divmod(int(row) * WIDTH, machine.shared.stride)
            missing = [f"{pending} of {expected} arrivals"] if pending else []
            missing += [f"{tx} bytes of transactions (tx-count {tx})"] if tx > 0 else []
            extra = f"; {-tx} bytes have come that it does not expect (tx-count {tx})" if tx < 0 else ""
            yield (
                f"{name_threads(machine, threads[rows == row])} wait at the mbarrier at shared address "
                f"{SHARED_BASE + offset:#x} of block {machine.batch.block_index(slot)}, which lacks "
                f"{' and '.join(missing) or 'nothing more'}{extra}"
            )


def pending_of(states: Array) -> Array:
    """u64 words [N] to the arrivals that they wait for, u32 [N]."""
    return (states & _FIELD).astype(np.uint32)


def parity_of(states: Array) -> NDArray[np.bool_]:
    return states & _PARITY != 0


def is_barrier_state(states: Array) -> NDArray[np.bool_]:
    return states & _VALID != 0


def _fields(words: Array) -> tuple[Array, Array, Array, Array]:
    """Parity (bool), and transactions, expected and pending arrivals (int64)."""
    transactions = ((words >> _TRANSACTIONS) & np.uint64(0x1FFFFF)).astype(np.int64)
    transactions = (transactions ^ _SIGN) - _SIGN
    expected = ((words >> _EXPECTED) & _FIELD).astype(np.int64)
    return words & _PARITY != 0, transactions, expected, (words & _FIELD).astype(np.int64)


def _packed(parity: Array, transactions: Array, expected: Array, pending: Array) -> Array:
    words = np.where(parity, _PARITY | _VALID, _VALID)
    words = words | (transactions & 0x1FFFFF).astype(np.uint64) << _TRANSACTIONS
    return words | expected.astype(np.uint64) << _EXPECTED | pending.astype(np.uint64)


def _earlier(inverse: Array, counts: Array) -> Array:
    """For each, the sum of the counts of those before it that belong to the same."""
    order = np.argsort(inverse, kind="stable")
    sums = np.cumsum(counts[order]) - counts[order]
    first = np.flatnonzero(np.diff(inverse[order], prepend=-1))
    starts = np.repeat(sums[first], np.diff(first, append=len(order)))
    result = np.empty(len(order), np.int64)
    result[order] = sums - starts
    return result

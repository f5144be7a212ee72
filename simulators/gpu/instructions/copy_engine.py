"""Copies that go on while threads do: asked for by one instruction, and done when something waits for them.

A copy is held back until it must be done: until its issuer waits for its group, or some thread looks at the mbarrier
that it signals. So a kernel that does not wait reads what was there before, and one that reuses what a copy still reads
spoils it. A schedule that hurries does some copies at once instead, so that one which writes to what is still in use
spoils that. A copy and its signal are done together.

Bounds and alignment are checked, and those who watch are told, when the instruction is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.instructions.mbarrier_objects import Barriers
from simulators.gpu.machine.access import Way, targets, turns
from simulators.gpu.machine.machine import Machine
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Order

Array = NDArray[Any]
PIECE = 16  # bytes
NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Copy:
    """What one instruction copies, in pieces of one size. All arrays have one element a piece."""

    instruction: Instruction
    unit: int  # bytes of a piece: 1, 2, 4, 8 or 16
    threads: NDArray[np.intp]  # who asked for it
    source: str  # state space
    sources: Array  # u64 addresses
    destination: str
    destinations: Array
    is_copied: NDArray[np.bool_] | None = None  # False: `fill` is written instead; None: all are copied
    fill: int = 0  # 64 bits, of which a piece takes as many as it has, over and over
    combine: Callable[[Array, Array], Array] | None = None  # from what is there, and the source, to what is left there
    convert: Callable[[Array], Array] | None = None  # of what was read
    values: Array | None = None  # what has been read: unsigned of `unit` bytes, or [pieces, 2] of 8
    keys: Array | None = None  # int64: the group, or the object that is signalled

    def announce(self, machine: Machine) -> None:
        """Check where it reads and writes. Errors: SimulatorError."""
        width, count = _shape(self.unit)
        if self.values is None:
            read = slice(None) if self.is_copied is None else self.is_copied
            way = Way(self.instruction, self.source, width, count, is_asynchronous=True)
            targets(machine, way, self.sources[read], self.threads[read], "read")
        order: Order = "weak" if self.combine is None else "relaxed"
        way = Way(self.instruction, self.destination, width, count, order, is_asynchronous=True)
        targets(machine, way, self.destinations, self.threads, "write" if self.combine is None else "update")

    def of(self, which: Array) -> Copy:
        """Some of the pieces; which: bool [pieces]."""
        return replace(
            self,
            threads=self.threads[which],
            sources=self.sources[which],
            destinations=self.destinations[which],
            is_copied=None if self.is_copied is None else self.is_copied[which],
            values=None if self.values is None else self.values[which],
            keys=None if self.keys is None else self.keys[which],
        )

    def read(self, machine: Machine) -> Copy:
        """The same with its source read, after which the source may change."""
        if self.values is not None:
            return self
        width, count = _shape(self.unit)
        fill = np.dtype(f"u{width}").type(self.fill & (1 << 8 * width) - 1)
        values = np.full((len(self.threads), count) if count > 1 else len(self.threads), fill)
        chosen = np.arange(len(self.threads)) if self.is_copied is None else np.flatnonzero(self.is_copied)
        found = machine.spaces.unaligned_targets(self.source, self.sources[chosen], self.unit, self.threads[chosen])
        for target in found:
            which = chosen if target.which is None else chosen[target.which]
            part = target.buffer.view(width, count)[target.offsets // self.unit]
            values[which] = part if self.convert is None else self.convert(part)
        return replace(self, values=values)

    def do(self, machine: Machine) -> None:
        values = self.read(machine).values
        assert values is not None
        width, count = _shape(self.unit)
        machine.changes += 1
        found = machine.spaces.unaligned_targets(self.destination, self.destinations, self.unit, self.threads)
        for target in found:
            part = values if target.which is None else values[target.which]
            view, rows = target.buffer.view(width, count), target.offsets // self.unit
            if self.combine is None:
                view[rows] = part
                continue
            for turn in turns(rows):
                view[rows[turn]] = self.combine(view[rows[turn]], part[turn])


def expand(copy: Copy, size: int, read: Array) -> Copy:
    """Of each piece, of `size` bytes, only the first ones are read, so many as int64 `read` says; the rest is zeros."""
    if ((read == 0) | (read == size)).all():
        return replace(copy, is_copied=read == size)
    steps = np.arange(size)
    return replace(
        copy,
        unit=1,
        threads=np.repeat(copy.threads, size),
        sources=(copy.sources[:, None] + steps.astype(np.uint64)).ravel(),
        destinations=(copy.destinations[:, None] + steps.astype(np.uint64)).ravel(),
        is_copied=(steps < read[:, None]).ravel(),
    )


def check_multiple(machine: Machine, instruction: Instruction, threads: Array, values: Array, size: int) -> None:
    """Of addresses, or of numbers of bytes. Errors: SimulatorError."""
    wrong = values % values.dtype.type(size) != 0
    if wrong.any():
        which = int(np.flatnonzero(wrong)[0])
        raise machine.fault(
            instruction, int(threads[which]), f"{int(values[which]):#x} is not a multiple of {size} bytes"
        )


def _shape(unit: int) -> tuple[int, int]:
    """Width and number of the elements of a piece."""
    return (8, 2) if unit == PIECE else (unit, 1)


class Groups:
    """Each thread's copies, in the groups that it made of them. Source: PTX ISA, "cp.async.commit_group",
    "cp.async.bulk.commit_group"."""

    def __init__(self) -> None:
        self._committed = np.zeros(0, np.int64)  # groups of each thread
        self._pending: list[tuple[int, Copy]] = []  # in order, each with its number
        self.num_issued = 0

    def issue(self, machine: Machine, copy: Copy) -> None:
        copy.announce(machine)
        self._grow(machine)
        if machine.hurries():
            copy.do(machine)
            return
        self.num_issued += 1
        self._pending.append((self.num_issued, replace(copy, keys=self._committed[copy.threads])))

    def commit(self, machine: Machine, threads: Array) -> None:
        self._grow(machine)
        self._committed[threads] += 1

    def wait(self, machine: Machine, threads: Array, newest: int, *, for_reads_only: bool = False) -> None:
        """Until only the newest groups of each thread, so many, are left."""
        self._grow(machine)
        limits = np.zeros(machine.batch.num_threads, np.int64)
        limits[threads] = self._committed[threads] - newest
        self._complete(machine, limits, for_reads_only=for_reads_only)

    def wait_all(self, machine: Machine, threads: Array, before: int | None = None) -> None:
        """Until nothing is left of what the threads issued, or of what has a number up to `before`."""
        limits = np.zeros(machine.batch.num_threads, np.int64)
        limits[threads] = NO_LIMIT
        self._complete(machine, limits, before=before)

    def _complete(
        self, machine: Machine, limits: Array, *, before: int | None = None, for_reads_only: bool = False
    ) -> None:
        """limits: by thread, the first group that may be left."""
        kept = []
        for number, copy in self._pending:
            assert copy.keys is not None
            done = copy.keys < limits[copy.threads]
            if not done.any() or (before is not None and number > before):
                kept.append((number, copy))
                continue
            part = copy if done.all() else copy.of(done)
            if for_reads_only:
                kept.append((number, part.read(machine)))
            else:
                part.do(machine)
            if part is not copy:
                kept.append((number, copy.of(~done)))
        self._pending = kept

    def _grow(self, machine: Machine) -> None:
        more = machine.batch.num_threads - len(self._committed)
        if more:
            self._committed = np.concatenate([self._committed, np.zeros(more, np.int64)])

    def exited(self, machine: Machine) -> None:
        if self._pending:
            self.wait_all(machine, np.flatnonzero(~machine.batch.alive))

    def waits(self, machine: Machine) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True)
class Signal:
    """What is told to mbarriers when copies are done. Arrays have one element for each of the threads."""

    instruction: Instruction
    threads: NDArray[np.intp]
    rows: NDArray[np.intp]  # the objects
    transactions: Array  # int64: bytes that have come
    arrivals: Array  # int64
    copy: Copy | None = None  # whose keys are the rows; None: all that the threads issued by cp.async
    before: int = 0  # then: up to this number


class Signals:
    """Copies that some mbarrier is to be told of, and has not been."""

    def __init__(self) -> None:
        self._pending: list[Signal] = []

    def issue(self, machine: Machine, signal: Signal) -> None:
        barriers = machine.rendezvous("mbarriers", Barriers)
        if signal.copy is not None:
            signal.copy.announce(machine)
        for watcher in machine.watchers:
            for row in np.unique(signal.rows):
                watcher.arrived(machine, np.unique(signal.threads[signal.rows == row]), barriers.key(row))
        if machine.hurries():
            self._do(machine, signal)
        else:
            self._pending.append(signal)

    def complete(self, machine: Machine, rows: Array) -> None:
        """Do what these objects wait for."""
        if not self._pending or not len(rows):
            return
        kept = []
        for signal in self._pending:
            done = np.isin(signal.rows, rows)
            if not done.any():
                kept.append(signal)
            elif done.all():
                self._do(machine, signal)
            else:
                self._do(machine, _part(signal, done))
                kept.append(_part(signal, ~done))
        self._pending = kept

    @staticmethod
    def _do(machine: Machine, signal: Signal) -> None:
        if signal.copy is not None:
            signal.copy.do(machine)
        else:
            machine.rendezvous("cp.async groups", Groups).wait_all(machine, signal.threads, signal.before)
        machine.rendezvous("mbarriers", Barriers).apply(
            machine,
            signal.instruction,
            signal.threads,
            signal.rows,
            arrivals=signal.arrivals,
            transactions=-signal.transactions,
        )

    def exited(self, machine: Machine) -> None:
        pass

    def waits(self, machine: Machine) -> Iterator[str]:
        return iter(())


def _part(signal: Signal, which: Array) -> Signal:
    copy = signal.copy
    if copy is not None:
        assert copy.keys is not None
        copy = copy.of(np.isin(copy.keys, signal.rows[which]))
    return replace(
        signal,
        threads=signal.threads[which],
        rows=signal.rows[which],
        transactions=signal.transactions[which],
        arrivals=signal.arrivals[which],
        copy=copy,
    )

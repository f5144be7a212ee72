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
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.machine.access import Way, targets, turns
from simulators.gpu.machine.machine import Machine
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Completion, Engine, Kind, Order

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

    def announce(self, machine: Machine, completion: Completion) -> None:
        """Check where it reads and writes. Errors: SimulatorError."""
        width, count = _shape(self.unit)
        if self.values is None:
            read = slice(None) if self.is_copied is None else self.is_copied
            way = Way(self.instruction, self.source, width, count, completion=completion)
            targets(machine, way, self.sources[read], self.threads[read], "read")
        order: Order = "weak" if self.combine is None else "relaxed"
        way = Way(self.instruction, self.destination, width, count, order, completion=completion)
        kind: Kind = "write" if self.combine is None else "update"
        targets(machine, way, self.destinations, self.threads, kind, self._origins() if machine.watchers else ())

    def _origins(self) -> tuple[Array, ...]:
        """Equal for pieces that write the same: from where they are copied, or what has been read."""
        if self.values is not None:
            return (self.values,) if self.values.ndim == 1 else (self.values[:, 0], self.values[:, 1])
        return (self.sources if self.is_copied is None else np.where(self.is_copied, self.sources, np.uint64(0)),)

    def kept(self) -> Copy:
        """The same in memory of its own: operands are views of registers, which may change before it is done."""
        values = None if self.values is None else self.values.copy()
        return replace(self, sources=self.sources.copy(), destinations=self.destinations.copy(), values=values)

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

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._committed = np.zeros(0, np.int64)  # groups of each thread
        self._pending: list[tuple[int, Copy]] = []  # in order, each with its number
        self.num_issued = 0

    def issue(self, machine: Machine, copy: Copy) -> None:
        copy.announce(machine, Completion(self._engine))
        self._grow(machine)
        if machine.hurries():
            copy.do(machine)
            return
        self.num_issued += 1
        self._pending.append((self.num_issued, replace(copy.kept(), keys=self._committed[copy.threads])))

    def commit(self, machine: Machine, threads: Array) -> None:
        self._grow(machine)
        self._committed[threads] += 1
        for watcher in machine.watchers:
            watcher.committed(machine, threads, self._engine)

    def wait(self, machine: Machine, threads: Array, newest: int, *, for_reads_only: bool = False) -> None:
        """Until only the newest groups of each thread, so many, are left."""
        self._grow(machine)
        limits = np.zeros(machine.batch.num_threads, np.int64)
        limits[threads] = self._committed[threads] - newest
        self._complete(machine, limits, for_reads_only=for_reads_only)
        for watcher in machine.watchers:
            watcher.completed(machine, threads, self._engine, newest, reads_alone=for_reads_only)

    def wait_all(self, machine: Machine, threads: Array) -> None:
        """Until nothing is left of what the threads issued."""
        self.commit(machine, threads)
        self.wait(machine, threads, 0)

    def complete(self, machine: Machine, threads: Array, before: int = NO_LIMIT) -> None:
        """Do what is left of what the threads issued that has a number up to `before`. They have not waited for it."""
        limits = np.zeros(machine.batch.num_threads, np.int64)
        limits[threads] = NO_LIMIT
        self._complete(machine, limits, before=before)

    def _complete(
        self, machine: Machine, limits: Array, *, before: int = NO_LIMIT, for_reads_only: bool = False
    ) -> None:
        """limits: by thread, the first group that may be left."""
        kept = []
        for number, copy in self._pending:
            assert copy.keys is not None
            done = copy.keys < limits[copy.threads]
            if not done.any() or number > before:
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
            self.complete(machine, np.flatnonzero(~machine.batch.alive))

    def waits(self, machine: Machine) -> Iterator[str]:
        return iter(())


def cp_async_groups(machine: Machine) -> Groups:
    return machine.rendezvous("cp.async groups", partial(Groups, "cp.async"))

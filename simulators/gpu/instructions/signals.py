"""What mbarrier objects are told when copies are done. A copy and its signal are done together (`copy_engine`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.instructions.copy_engine import Copy, cp_async_groups
from simulators.gpu.instructions.mbarrier_objects import WIDTH, Barriers
from simulators.gpu.machine.machine import Machine
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Completion, Engine, Key

Array = NDArray[Any]


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
    ticket: int = 0  # of what was issued: parts of one have the same

    def key(self, row: int) -> Key:
        """What those who watch know it by, of one object."""
        return "signal", self.ticket, int(row) * WIDTH


class Signals:
    """Copies that some mbarrier is to be told of, and has not been."""

    def __init__(self) -> None:
        self._pending: list[Signal] = []
        self._num_issued = 0

    def issue(self, machine: Machine, engine: Engine, signal: Signal) -> None:
        self._num_issued += 1
        signal = replace(signal, ticket=self._num_issued)
        rows = np.unique(signal.rows)
        for row in rows:
            key = signal.key(row)
            for watcher in machine.watchers:
                mine = np.unique(signal.threads[signal.rows == row])
                watcher.promised(machine, signal.instruction, mine, key, engine)
            if signal.copy is not None:
                copy = signal.copy if len(rows) == 1 else signal.copy.of(signal.copy.keys == row)
                copy.announce(machine, Completion(engine, key))
        if machine.hurries():
            self._do(machine, signal)
        else:
            kept = signal if signal.copy is None else replace(signal, copy=signal.copy.kept())
            self._pending.append(kept)

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
            cp_async_groups(machine).complete(machine, signal.threads, signal.before)
        barriers = machine.rendezvous("mbarriers", Barriers)
        for watcher in machine.watchers:
            for row in np.unique(signal.rows):
                watcher.passed_on(machine, signal.key(row), barriers.key(row))
        barriers.apply(
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

"""Groups that went back in a loop: when they wait there for others, and when it is in vain.

A loop that looks at what others may change is taken for a wait: its group goes round again when no other can run. So
is, now and then, a loop that goes round for long. If a whole round changes neither memory nor a register that the
loops write, the next ones will not either: those who wait do so for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

PATIENCE = 3  # rounds in which all who can run poll, and nothing changes, until they are said to wait for ever
SLICE = 1000  # times that a loop goes back, that seems not to poll, until others run
# Rounds of polling: of so many, in the last ones it is looked closely whether stores leave what was there before.
_LONG, _CLOSELY = 512, 16

Groups = dict[int, list[Threads]]  # by the pc at which they stand
_Standing = tuple[NDArray[np.intp], list[NDArray[Any]]]  # threads, and what some of their registers hold


class Polling:
    """Of the resident blocks."""

    def __init__(self) -> None:
        self.groups: Groups = {}  # each at the beginning of its loop
        self._turns: dict[int, int] = {}  # of loops that seem not to poll, by where they begin
        self._rounds = 0
        self._quiet_rounds = 0  # the latest of them in which memory did not change
        self._idle_rounds = 0  # and the latest in which nothing did
        self._seen_changes = -1
        self._stood: dict[int, _Standing] | None = None

    @property
    def looks_closely(self) -> bool:
        """Does a store that leaves what was there count as no change? To find out takes time."""
        return self._rounds % _LONG >= _LONG - _CLOSELY

    def goes_round(self, machine: Machine, pc: int, target: int, threads: Threads) -> bool:
        """Does a branch back, that is taken, make the group wait until the others have run?"""
        if target > pc:
            return False
        if machine.program.loops[target].is_endless:
            instruction = machine.program.operations[pc].instruction
            raise machine.fault(instruction, int(machine.batch.first(threads)[0]), "nothing leads out of this loop")
        if machine.program.may_wait[pc]:
            return True
        turns = self._turns.get(target, 0) + 1
        self._turns[target] = turns % SLICE
        return turns == SLICE

    def look_again(self, machine: Machine) -> Groups:
        """All who can run wait for something, or go round and round: those who go on now. Errors: Deadlock."""
        self._rounds += 1
        is_quiet = machine.changes == self._seen_changes
        self._seen_changes = machine.changes
        self._quiet_rounds = self._quiet_rounds + 1 if is_quiet else 0
        self._idle_rounds = self._idle_rounds + 1 if self._stands_still(machine, is_quiet) else 0
        if self._quiet_rounds > 1 and self._waits_for_others() and machine.admit_more():
            self._stood = None
            return machine.ready
        if self._idle_rounds > PATIENCE:
            if machine.late_stores is None or not machine.late_stores.let_out_all():
                raise machine.deadlock()
            self._idle_rounds = 0
        going, self.groups = self.groups, {}
        return going

    def _stands_still(self, machine: Machine, is_quiet: bool) -> bool:
        """Is each group, and each register that its loop writes, as it was a round before?"""
        before, self._stood = self._stood, None
        if not is_quiet or any(machine.program.loops[pc].reads_clock for pc in self.groups):
            return False
        self._stood = {}
        for pc, parts in self.groups.items():
            numbers = machine.batch.numbers(machine.batch.union(parts))
            registers = [machine.registers[number][numbers] for number in machine.program.loops[pc].written]
            self._stood[pc] = numbers, registers
        if before is None or before.keys() != self._stood.keys():
            return False
        for pc, (numbers, registers) in self._stood.items():
            numbers_before, registers_before = before[pc]
            if not np.array_equal(numbers, numbers_before):
                return False
            if not all(np.array_equal(*pair) for pair in zip(registers, registers_before, strict=True)):
                return False
        return True

    def _waits_for_others(self) -> bool:
        """Does it look so? A long loop that does not poll may just compute."""
        polls = any(self._turns.get(pc) is None for pc in self.groups)
        return polls or self._idle_rounds > 1 or self._quiet_rounds > _LONG

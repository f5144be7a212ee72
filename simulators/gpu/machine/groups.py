"""What a group of threads does that stands at one instruction: it goes on until it splits, waits, ends, or comes to
where others stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from simulators.gpu.batch import Threads
from simulators.gpu.errors import SimulatorError
from simulators.gpu.machine.operation import Branch, Exit, IndexedBranch, Meeting, Straight

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

After = tuple[int, Threads] | None  # where the group, or what is left of it, goes on at once; None if it does not


def go(machine: Machine, pc: int, threads: Threads) -> None:
    """Run a group, which is in none of the machine's lists. Errors: SimulatorError."""
    operations = machine.program.operations
    while pc < len(operations):
        operation = operations[pc]
        after = _STEPS[type(operation)](machine, pc, operation, threads)
        if after is None:
            return
        pc, threads = after
        if machine.ready and machine.schedule.gives_way(machine, pc, machine.ready):
            machine.add(pc, threads)
            return
    machine.end(threads)


def _pass_segment(machine: Machine, pc: int, operation: Straight, threads: Threads) -> After:
    end = machine.program.segment_end[pc]
    _count(machine, pc, end, threads)
    for run in machine.program.runs[pc:end]:
        run(machine, threads)  # type: ignore[misc] # a segment holds straight operations only
    return end, threads


def _branch(machine: Machine, pc: int, operation: Branch, threads: Threads) -> After:
    batch, polling = machine.batch, machine.polling
    _count(machine, pc, pc + 1, threads)
    taken = _taken(machine, pc, threads)
    if batch.count(taken) == 0:
        return pc + 1, threads
    waits = polling.goes_round(machine, pc, operation.target, taken)
    if batch.count(taken) == batch.count(threads):
        if not waits:
            return operation.target, threads
        polling.groups.setdefault(operation.target, []).append(threads)
        return None
    rest = batch.without(threads, taken)
    for watcher in machine.watchers:
        watcher.diverged(machine, operation.instruction, taken, rest)
    groups = polling.groups if waits else machine.ready
    groups.setdefault(operation.target, []).append(taken)
    machine.add(pc + 1, rest)
    return None


def _meet(machine: Machine, pc: int, operation: Meeting, threads: Threads) -> After:
    _count(machine, pc, pc + 1, threads)
    here = _taken(machine, pc, threads)
    machine.add(pc + 1, machine.batch.without(threads, here))
    if machine.batch.count(here) == 0:
        return None
    going = operation.meet(machine, here)
    return (pc + 1, going) if machine.batch.count(going) else None


def _go_by_index(machine: Machine, pc: int, operation: IndexedBranch, threads: Threads) -> After:
    batch = machine.batch
    _count(machine, pc, pc + 1, threads)
    numbers = batch.numbers(_taken(machine, pc, threads))
    machine.add(pc + 1, batch.without(threads, numbers))
    index = np.broadcast_to(np.asarray(operation.index(machine, numbers)), len(numbers))
    for one in np.unique(index):
        if one >= len(operation.targets):
            raise SimulatorError(f"branch index {one} of {len(operation.targets)}", operation.instruction.place)
        target = operation.targets[int(one)]
        waits = machine.polling.goes_round(machine, pc, target, numbers)
        groups = machine.polling.groups if waits else machine.ready
        groups.setdefault(target, []).append(numbers[index == one])
    return None


def _leave(machine: Machine, pc: int, operation: Exit, threads: Threads) -> After:
    _count(machine, pc, pc + 1, threads)
    leaving = _taken(machine, pc, threads)
    machine.add(pc + 1, machine.batch.without(threads, leaving))
    machine.end(leaving)
    return None


_STEPS: Mapping[type, Callable[..., After]] = {
    Straight: _pass_segment,
    Branch: _branch,
    Meeting: _meet,
    IndexedBranch: _go_by_index,
    Exit: _leave,
}


def _count(machine: Machine, first: int, end: int, threads: Threads) -> None:
    machine.ticks += end - first
    machine.thread_instructions += (end - first) * machine.batch.count(threads)
    for watcher in machine.watchers:
        watcher.executed(machine, first, end, threads)


def _taken(machine: Machine, pc: int, threads: Threads) -> Threads:
    """Those of them whose guard holds."""
    guard = machine.program.guards[pc]
    if guard is None:
        return threads
    condition = machine.registers[guard.number]
    return machine.batch.where(threads, ~condition if guard.is_inverted else condition)

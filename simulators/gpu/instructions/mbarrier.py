"""mbarrier instructions, decoded.

A wait never blocks here: `try_wait` looks as `test_wait` does, and the machine knows a loop around either as a wait.
Looking at an object does the copies that it is to be told of, if it would wait otherwise.
Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.mbarrier_objects import Barriers, is_barrier_state, parity_of, pending_of
from simulators.gpu.instructions.signals import Signals
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, Source
from simulators.gpu.ptx.module import Address, Immediate, Instruction, Operand, Sink, Symbol

Array = NDArray[Any]
_SPACES = ("shared", "shared::cta", "shared::cluster")
_SEMANTICS = ("release", "acquire", "relaxed", "cta", "cluster")
_ONE = Immediate(1)


def barriers_of(machine: Machine) -> Barriers:
    return machine.rendezvous("mbarriers", Barriers)


def signals_of(machine: Machine) -> Signals:
    return machine.rendezvous("copies that signal", Signals)


def _decode(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    name, *modifiers = instruction.modifiers
    if name not in _DECODERS:
        raise UnsupportedInstruction(instruction)
    own: tuple[str, ...] = ("parity",) if name in ("test_wait", "try_wait") else ()
    if name in ("arrive", "arrive_drop"):
        own = ("noComplete", "expect_tx")
    for one in modifiers:
        if one not in (*_SPACES, *_SEMANTICS, *own, "b64"):
            raise UnsupportedInstruction(instruction, f"modifier .{one} is unknown")
    return _DECODERS[name](instruction, scope)


def space_of(instruction: Instruction) -> str:
    return next((one for one in instruction.modifiers if one in _SPACES), "generic")


def _is_released(instruction: Instruction) -> bool:
    return "relaxed" not in instruction.modifiers


def _per_thread(values: Array, numbers: Array) -> Array:
    """u32, one or one for all, as int64 [N]."""
    return np.broadcast_to(values, len(numbers)).astype(np.int64)


def _decode_init(instruction: Instruction, scope: Scope) -> Operation:
    address = scope.address(instruction, instruction.operands[0])
    count = scope.source(instruction, instruction.operands[1], 32)
    space = space_of(instruction)

    def run(machine: Machine, threads: Threads) -> None:
        numbers, barriers = machine.batch.numbers(threads), barriers_of(machine)
        rows = barriers.rows(machine, instruction, space, address(machine, threads), numbers, "write")
        barriers.initialize(machine, instruction, numbers, rows, _per_thread(count(machine, threads), numbers))

    return Straight(instruction, run)


def _decode_inval(instruction: Instruction, scope: Scope) -> Operation:
    address = scope.address(instruction, instruction.operands[0])
    space = space_of(instruction)

    def run(machine: Machine, threads: Threads) -> None:
        numbers, barriers = machine.batch.numbers(threads), barriers_of(machine)
        rows = barriers.rows(machine, instruction, space, address(machine, threads), numbers, "write")
        barriers.invalidate(machine, instruction, numbers, rows)

    return Straight(instruction, run)


def _decode_arrive(instruction: Instruction, scope: Scope) -> Operation:
    """Forms: `{state,} [address] {, count}`; with .expect_tx the last operand is the transactions instead."""
    operands = list(instruction.operands)
    result = operands.pop(0) if _is_result(operands[0]) else Sink()
    space = space_of(instruction)
    if space == "shared::cluster" and not isinstance(result, Sink):
        raise UnsupportedInstruction(instruction, "an arrival at another block's object has no result")
    put = scope.destination(instruction, result)
    address = scope.address(instruction, operands.pop(0))
    last: Source = scope.source(instruction, operands.pop(0) if operands else _ONE, 32)
    expects, drops = "expect_tx" in instruction.modifiers, instruction.modifiers[0] == "arrive_drop"
    may_complete = "noComplete" not in instruction.modifiers
    reaches_others = space == "shared::cluster" or "cluster" in instruction.modifiers
    releases_cluster = reaches_others and _is_released(instruction)
    if operands:
        raise UnsupportedInstruction(instruction, "it has too many operands")

    def run(machine: Machine, threads: Threads) -> None:
        numbers, barriers = machine.batch.numbers(threads), barriers_of(machine)
        rows = barriers.rows(machine, instruction, space, address(machine, threads), numbers, "update")
        value = _per_thread(last(machine, threads), numbers)
        if releases_cluster and machine.late_stores is not None:
            machine.late_stores.let_out(machine.batch.slot[numbers])
        if not expects and (value < 1).any():
            thread = int(numbers[np.flatnonzero(value < 1)[0]])
            raise machine.fault(instruction, thread, "it arrives 0 times; the count must be 1 or more")
        before = barriers.apply(
            machine,
            instruction,
            numbers,
            rows,
            arrivals=np.ones_like(value) if expects else value,
            transactions=value if expects else np.zeros_like(value),
            drops=drops,
            order="release" if _is_released(instruction) else "relaxed",
        )
        completed = barriers.is_complete(machine, instruction, numbers, rows, parity_of(before))
        if not may_complete and completed.any():
            thread = int(numbers[np.flatnonzero(completed)[0]])
            raise machine.fault(instruction, thread, "it completes the phase, which .noComplete rules out")
        put(machine, threads, before)

    return Straight(instruction, run)


def _is_result(operand: Operand) -> bool:
    return not isinstance(operand, Address | Symbol)


def _decode_transactions(instruction: Instruction, scope: Scope) -> Operation:
    address = scope.address(instruction, instruction.operands[0])
    amount = scope.source(instruction, instruction.operands[1], 32)
    space = space_of(instruction)
    sign = 1 if instruction.modifiers[0] == "expect_tx" else -1

    def run(machine: Machine, threads: Threads) -> None:
        numbers, barriers = machine.batch.numbers(threads), barriers_of(machine)
        rows = barriers.rows(machine, instruction, space, address(machine, threads), numbers, "update")
        value = _per_thread(amount(machine, threads), numbers)
        barriers.apply(machine, instruction, numbers, rows, arrivals=np.zeros_like(value), transactions=sign * value)

    return Straight(instruction, run)


def _decode_wait(instruction: Instruction, scope: Scope) -> Operation:
    """`done, [address], state or parity {, time to wait for}`."""
    put = scope.destination(instruction, instruction.operands[0])
    address = scope.address(instruction, instruction.operands[1])
    by_parity = "parity" in instruction.modifiers
    source = scope.source(instruction, instruction.operands[2], 32 if by_parity else 64)
    if len(instruction.operands) > (4 if instruction.modifiers[0] == "try_wait" else 3):
        raise UnsupportedInstruction(instruction, "it has too many operands")
    acquires = _is_released(instruction)

    def run(machine: Machine, threads: Threads) -> None:
        numbers, barriers = machine.batch.numbers(threads), barriers_of(machine)
        rows = barriers.rows(machine, instruction, space_of(instruction), address(machine, threads), numbers, "read")
        values = np.broadcast_to(source(machine, threads), len(numbers))
        if by_parity:
            parity = values & np.uint32(1) != 0  # the manual knows 0 and 1; an H200 looks at bit 0 alone
        else:
            parity = parity_of(values)
            if (wrong := ~is_barrier_state(values)).any():
                which = int(np.flatnonzero(wrong)[0])
                message = f"{int(values[which]):#x} is given as the state, which no mbarrier.arrive has returned"
                raise machine.fault(instruction, int(numbers[which]), message)
        done = barriers.is_complete(machine, instruction, numbers, rows, parity)
        if not done.all():
            signals_of(machine).complete(machine, np.unique(rows[~done]))
            done = barriers.is_complete(machine, instruction, numbers, rows, parity)
        barriers.looked(machine, numbers, rows, parity, done, acquires=acquires)
        put(machine, threads, done)

    return Straight(instruction, run, polls=True)


def _decode_pending_count(instruction: Instruction, scope: Scope) -> Operation:
    put = scope.destination(instruction, instruction.operands[0])
    state = scope.source(instruction, instruction.operands[1], 64)
    return Straight(instruction, lambda machine, threads: put(machine, threads, pending_of(state(machine, threads))))


_DECODERS = {
    "init": _decode_init,
    "inval": _decode_inval,
    "arrive": _decode_arrive,
    "arrive_drop": _decode_arrive,
    "expect_tx": _decode_transactions,
    "complete_tx": _decode_transactions,
    "test_wait": _decode_wait,
    "try_wait": _decode_wait,
    "pending_count": _decode_pending_count,
}
DECODERS = {"mbarrier": _decode}

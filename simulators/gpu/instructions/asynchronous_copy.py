"""`cp.async`: each thread copies a few bytes from global to shared memory, and waits for its own copies by group or by
mbarrier. Source: PTX ISA, "Data Movement and Conversion Instructions: cp.async", "cp.async.mbarrier.arrive".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.copy_engine import Copy, check_multiple, cp_async_groups, expand
from simulators.gpu.instructions.mbarrier import barriers_of, signals_of, space_of
from simulators.gpu.instructions.signals import Signal
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope
from simulators.gpu.ptx.module import Immediate, Instruction, NotRegister, Operand, Register

Array = NDArray[Any]
_HINTS = ("L2::cache_hint", "L2::64B", "L2::128B", "L2::256B")
_SIZES = {"ca": (4, 8, 16), "cg": (16,)}


def _decode(instruction: Instruction, scope: Scope, pc: int) -> Operation | None:
    match instruction.modifiers:
        case ("async", "commit_group"):
            return Straight(
                instruction,
                lambda machine, threads: cp_async_groups(machine).commit(machine, machine.batch.numbers(threads)),
            )
        case ("async", "wait_all"):
            return Straight(
                instruction,
                lambda machine, threads: cp_async_groups(machine).wait_all(machine, machine.batch.numbers(threads)),
            )
        case ("async", "wait_group"):
            newest = group_count(instruction)
            return Straight(
                instruction,
                lambda machine, threads: cp_async_groups(machine).wait(machine, machine.batch.numbers(threads), newest),
            )
        case ("async", "mbarrier", "arrive", *rest):
            return _decode_arrive(instruction, scope, rest)
        case ("async", "ca" | "cg" as cache, "shared" | "shared::cta", "global", *hints):
            if set(hints) <= set(_HINTS):
                return _decode_copy(instruction, scope, cache)
            raise UnsupportedInstruction(instruction)
    return None


def group_count(instruction: Instruction) -> int:
    """Of a `wait_group`: how many of the newest groups may be left."""
    (count,) = instruction.operands
    if not isinstance(count, Immediate) or count.value < 0:
        raise UnsupportedInstruction(instruction, "the number of groups must be a constant")
    return count.value


def _decode_copy(instruction: Instruction, scope: Scope, cache: str) -> Operation:
    destination, source, size, *rest = instruction.operands
    if "L2::cache_hint" in instruction.modifiers:
        *rest, _ = rest  # a policy
    if not isinstance(size, Immediate) or size.value not in _SIZES[cache] or len(rest) > 1:
        raise UnsupportedInstruction(instruction, f"it must copy {' or '.join(map(str, _SIZES[cache]))} bytes")
    unit = size.value
    to, of = scope.address(instruction, destination), scope.address(instruction, source)
    ignores = scope.source(instruction, rest[0], 1) if rest and _is_predicate(rest[0]) else None
    reads = scope.source(instruction, rest[0], 32) if rest and ignores is None else None

    def run(machine: Machine, threads: Threads) -> None:
        numbers = machine.batch.numbers(threads)
        copy = Copy(instruction, unit, numbers, "global", of(machine, threads), "shared", to(machine, threads))
        if ignores is not None:
            copy = expand(copy, unit, np.broadcast_to(~ignores(machine, threads), len(numbers)) * unit)
        elif reads is not None:
            sizes = np.broadcast_to(reads(machine, threads), len(numbers)).astype(np.int64)
            if (sizes > unit).any():
                thread = int(numbers[np.flatnonzero(sizes > unit)[0]])
                raise machine.fault(
                    instruction, thread, f"{sizes.max()} bytes of source for {unit} bytes of destination"
                )
            check_multiple(machine, instruction, numbers, copy.destinations, unit)
            copy = expand(copy, unit, sizes)
        cp_async_groups(machine).issue(machine, copy)

    return Straight(instruction, run)


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, NotRegister) or (isinstance(operand, Register) and operand.type == "pred")


def _decode_arrive(instruction: Instruction, scope: Scope, rest: list[str]) -> Operation:
    """An arrival that is made when what the thread has copied so far is there. Without .noinc the phase waits for one
    arrival more until then."""
    if set(rest) - {"noinc", "shared", "shared::cta", "b64"}:
        raise UnsupportedInstruction(instruction)
    address = scope.address(instruction, instruction.operands[0])
    increments = "noinc" not in rest
    space = space_of(instruction)

    def run(machine: Machine, threads: Threads) -> None:
        numbers, barriers = machine.batch.numbers(threads), barriers_of(machine)
        rows = barriers.rows(machine, instruction, space, address(machine, threads), numbers, "update")
        none, one = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.int64)
        if increments:
            barriers.apply(machine, instruction, numbers, rows, arrivals=-one, transactions=none)
        signal = Signal(instruction, numbers, rows, none, one, before=cp_async_groups(machine).num_issued)
        signals_of(machine).issue(machine, "cp.async", signal)

    return Straight(instruction, run)


DECODERS = {"cp": _decode}

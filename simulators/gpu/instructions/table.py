"""From an opcode to what decodes it."""

from __future__ import annotations

from collections.abc import Callable

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions import (
    asynchronous_copy,
    asynchronous_store,
    atomic,
    barrier,
    bulk_copy,
    control,
    data,
    fence,
    load_store,
    matrix,
    mbarrier,
    multimem,
    multiply_accumulate,
    tensor_copy,
    tensor_map,
    warp,
    warpgroup,
)
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope
from simulators.gpu.ptx.module import Instruction, Kernel, NotRegister

Decoder = Callable[[Instruction, Scope, int], Operation | None]  # None: another form of the same opcode

_DECODERS: dict[str, tuple[Decoder, ...]] = {}
for _module in (
    asynchronous_store,
    load_store,
    atomic,
    multimem,
    warp,
    barrier,
    mbarrier,
    asynchronous_copy,
    bulk_copy,
    tensor_copy,
    tensor_map,
    matrix,
    multiply_accumulate,
    warpgroup,
    fence,
    data,
):
    for _opcode, _decoder in _module.DECODERS.items():
        _DECODERS[_opcode] = (*_DECODERS.get(_opcode, ()), _decoder)


def decode(instruction: Instruction, scope: Scope, pc: int, kernel: Kernel) -> Operation:
    """Errors: UnsupportedInstruction."""
    try:
        operation = _decoded(instruction, scope, pc, kernel)
    except (
        ValueError,
        IndexError,
        AssertionError,
    ) as error:  # more or fewer operands than there are, or of other kinds
        raise UnsupportedInstruction(instruction, "its operands have a form that is unknown") from error
    if operation is None:
        raise UnsupportedInstruction(instruction)
    return operation


def _decoded(instruction: Instruction, scope: Scope, pc: int, kernel: Kernel) -> Operation | None:
    operation = control.decode(instruction, scope, kernel)
    if operation is not None:
        return _guarded(operation, scope)
    for decoder in _DECODERS.get(instruction.opcode, (data.decode,)):
        operation = decoder(instruction, scope, pc)
        if operation is not None:
            return _guarded(operation, scope)
    return None


def _guarded(operation: Operation, scope: Scope) -> Operation:
    """A straight operation that only those threads do whose guard holds. The machine itself asks the other kinds'."""
    instruction = operation.instruction
    guard = instruction.guard
    if guard is None or not isinstance(operation, Straight):
        return operation
    register = guard.register if isinstance(guard, NotRegister) else guard
    number, inverted, run = scope.number(register, instruction), isinstance(guard, NotRegister), operation.run

    def run_guarded(machine: Machine, threads: Threads) -> None:
        condition = machine.registers[number]
        some = machine.batch.where(threads, ~condition if inverted else condition)
        if machine.batch.count(some):
            run(machine, some)

    return Straight(instruction, run_guarded, operation.polls)

"""From a parsed kernel to the program that a machine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.table import decode
from simulators.gpu.machine.operation import Branch, Exit, IndexedBranch, Operation, Straight
from simulators.gpu.machine.program import Guard, Loop, Program
from simulators.gpu.machine.scope import Scope, Variable, flatten
from simulators.gpu.machine.special import is_clock
from simulators.gpu.memory.spaces import SHARED_BASE
from simulators.gpu.ptx.module import Kernel, Module, NotRegister, Special
from simulators.gpu.ptx.module import Variable as Declaration


def program_of(module: Module, kernel: Kernel, global_addresses: Mapping[str, int]) -> Program:
    """global_addresses: of the module's .global and .const variables. Errors: UnsupportedInstruction."""
    _check_calls(kernel)
    variables = {name: Variable("global", address) for name, address in global_addresses.items()}
    variables |= {one.name: Variable("param", one.offset) for one in kernel.parameters}
    declared = (*module.variables, *kernel.variables)
    shared, shared_bytes = _laid_out([one for one in declared if one.space == "shared"], "shared", SHARED_BASE)
    local, local_bytes = _laid_out([one for one in declared if one.space == "local"], "local", 0)
    constants = [(global_addresses[one.name], one.size) for one in module.variables if one.space == "const"]
    scope = Scope(variables | shared | local, tuple((first, first + size) for first, size in constants))
    decoded, written = [], []
    for pc, instruction in enumerate(kernel.instructions):
        scope.written = set()
        decoded.append(decode(instruction, scope, pc, kernel))
        written.append(scope.written)
    operations = tuple(decoded)
    return Program(
        kernel,
        operations,
        tuple(one.run if isinstance(one, Straight) else None for one in operations),
        tuple(None if isinstance(one, Straight) else _guard(one, scope) for one in operations),
        _segment_ends(operations, kernel),
        tuple(_may_wait(operations, pc) for pc in range(len(operations))),
        _loops(operations, written),
        tuple(scope.register_types),
        shared_bytes - SHARED_BASE,
        local_bytes,
    )


def _check_calls(kernel: Kernel) -> None:
    """Before anything else is said of what stands around a call."""
    for instruction in kernel.instructions:
        if instruction.opcode == "call":
            raise UnsupportedInstruction(instruction, "functions are not simulated: they must be inlined")


def _guard(operation: Operation, scope: Scope) -> Guard | None:
    instruction = operation.instruction
    match instruction.guard:
        case None:
            return None
        case NotRegister(register=register):
            return Guard(scope.number(register, instruction), True)
        case register:
            return Guard(scope.number(register, instruction), False)


def _laid_out(declared: Sequence[Declaration], space: str, start: int) -> tuple[dict[str, Variable], int]:
    """Variables one after another; those without a size, which the launch gives one, all begin at the end."""
    places, end = {}, start
    for one in sorted(declared, key=lambda variable: variable.is_external):
        align = max(one.align, 1)
        # What has no size begins where dynamic shared memory does, at its own alignment.
        end = -(-end // align) * align
        places[one.name] = Variable(space, end)
        if not one.is_external:
            end += one.size
    return places, end


def _segment_ends(operations: Sequence[Operation], kernel: Kernel) -> tuple[int, ...]:
    leaders = set(kernel.labels.values())
    ends = [0] * len(operations)
    end = len(operations)
    for pc in reversed(range(len(operations))):
        if not isinstance(operations[pc], Straight):
            end = pc
        ends[pc] = end
        if pc in leaders:
            end = pc
    return tuple(ends)


def _targets(operation: Operation) -> tuple[int, ...]:
    match operation:
        case Branch(target=target):
            return (target,)
        case IndexedBranch(targets=targets):
            return targets
    return ()


def _may_wait(operations: Sequence[Operation], pc: int) -> bool:
    first = min(_targets(operations[pc]), default=pc)
    return any(isinstance(one, Straight) and one.polls for one in operations[first:pc])


def _loops(operations: Sequence[Operation], written: Sequence[set[int]]) -> dict[int, Loop]:
    back = [(target, pc) for pc, one in enumerate(operations) for target in _targets(one) if target <= pc]
    loops = {}
    for first in {target for target, _ in back}:
        end = before = first
        while True:  # a branch back into the loop, from beyond, makes it longer
            end = max(pc for target, pc in back if first <= target <= max(end, before))
            if end == before:
                break
            before = end
        body = range(first, end + 1)
        reads_clock = any(
            isinstance(operand, Special) and is_clock(operand.name)
            for pc in body
            for operands in operations[pc].instruction.operands
            for operand in flatten(operands)
        )
        registers = sorted(set().union(*(written[pc] for pc in body)))
        loops[first] = Loop(tuple(registers), reads_clock, _is_endless(operations, body))
    return loops


def _is_endless(operations: Sequence[Operation], body: range) -> bool:
    """Does nothing lead out of it?"""
    for pc in body:
        operation = operations[pc]
        if isinstance(operation, Exit) or operation.instruction.opcode == "trap":
            return False
        if any(target not in body for target in _targets(operation)):
            return False
    last = operations[body[-1]]  # which goes back
    return last.instruction.guard is None

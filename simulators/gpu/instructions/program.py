"""From a parsed kernel to the program that a machine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulators.gpu.instructions.table import decode
from simulators.gpu.machine.operation import Branch, IndexedBranch, Operation, Straight
from simulators.gpu.machine.program import Guard, Program
from simulators.gpu.machine.scope import Scope, Variable
from simulators.gpu.memory.spaces import SHARED_BASE
from simulators.gpu.ptx.module import Kernel, Module, NotRegister
from simulators.gpu.ptx.module import Variable as Declaration


def program_of(module: Module, kernel: Kernel, global_addresses: Mapping[str, int]) -> Program:
    """global_addresses: of the module's .global and .const variables. Errors: UnsupportedInstruction."""
    variables = {name: Variable("global", address) for name, address in global_addresses.items()}
    variables |= {one.name: Variable("param", one.offset) for one in kernel.parameters}
    declared = (*module.variables, *kernel.variables)
    shared, shared_bytes = _laid_out([one for one in declared if one.space == "shared"], "shared", SHARED_BASE)
    local, local_bytes = _laid_out([one for one in declared if one.space == "local"], "local", 0)
    scope = Scope(variables | shared | local)
    operations = tuple(decode(instruction, scope, pc, kernel) for pc, instruction in enumerate(kernel.instructions))
    return Program(
        kernel,
        operations,
        tuple(one.run if isinstance(one, Straight) else None for one in operations),
        tuple(None if isinstance(one, Straight) else _guard(one, scope) for one in operations),
        _segment_ends(operations, kernel),
        tuple(_may_wait(operations, pc) for pc in range(len(operations))),
        tuple(scope.register_types),
        shared_bytes - SHARED_BASE,
        local_bytes,
    )


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


def _may_wait(operations: Sequence[Operation], pc: int) -> bool:
    match operations[pc]:
        case Branch(target=target):
            first = target
        case IndexedBranch(targets=targets):
            first = min(targets)
        case _:
            return False
    return any(isinstance(one, Straight) and one.polls for one in operations[first:pc])

"""Registers that a product of wgmma still works on: nobody else may use them before it has been waited for.

Instructions under a guard are passed by: whether they are executed is not known before.
Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation: Register Fragments".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.machine.operation import Operation
from simulators.gpu.ptx.module import Address, Instruction, NotRegister, Operand, Pair, Register, Vector

_NONE = -1


@dataclass
class _Pending:
    """One D, of all threads."""

    instruction: Instruction
    registers: frozenset[str]
    group: NDArray[np.int64]  # by thread: the number of the group of the latest product


class Accumulators:
    """Those of the resident blocks."""

    def __init__(self) -> None:
        self._pending: dict[frozenset[str], _Pending] = {}
        self._named: dict[int, frozenset[str]] = {}  # by an instruction's id, as long as its program is held

    def begin(self) -> None:
        """New threads, and none before."""
        self._pending = {}

    def issue(
        self,
        instruction: Instruction,
        registers: frozenset[str],
        threads: NDArray[np.intp],
        groups: NDArray[np.int64],
        num_threads: int,
    ) -> None:
        """groups: the number of each thread's group of products that is not committed."""
        one = self._pending.get(registers)
        if one is None or len(one.group) < num_threads:
            group = np.full(num_threads, _NONE)
            if one is not None:
                group[: len(one.group)] = one.group
            one = self._pending[registers] = _Pending(instruction, registers, group)
        one.group[threads] = groups

    def complete(self, threads: NDArray[np.intp], limits: NDArray[np.int64]) -> None:
        """Each thread's groups before its limit are done."""
        for one in list(self._pending.values()):
            within = threads < len(one.group)
            done = threads[within][one.group[threads[within]] < limits[within]]
            one.group[done] = _NONE
            if (one.group == _NONE).all():
                del self._pending[one.registers]

    def used(
        self, operations: Sequence[Operation], threads: NDArray[np.intp]
    ) -> Iterator[tuple[Instruction, Instruction, int]]:
        """Instructions of these that use what a product works on, that product, and one of the threads."""
        for one in self._pending.values():
            some = threads[threads < len(one.group)]
            waiting = some[one.group[some] != _NONE]
            for operation in operations if len(waiting) else ():
                instruction = operation.instruction
                if instruction.opcode == "wgmma" or instruction.guard is not None:
                    continue
                if not one.registers.isdisjoint(self._names(instruction)):
                    yield instruction, one.instruction, int(waiting[0])

    def _names(self, instruction: Instruction) -> frozenset[str]:
        if id(instruction) not in self._named:
            self._named[id(instruction)] = frozenset(_registers(instruction.operands))
        return self._named[id(instruction)]

    def __bool__(self) -> bool:
        return bool(self._pending)


def _registers(operands: Sequence[Operand]) -> Iterator[str]:
    for one in operands:
        match one:
            case Register() | NotRegister():
                yield one.name if isinstance(one, Register) else one.register.name
            case Vector(elements):
                yield from _registers(elements)
            case Pair(first, second):
                yield from _registers((first, second))
            case Address(Register() as base):
                yield base.name

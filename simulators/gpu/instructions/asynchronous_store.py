"""`st.async` and `red.async`: a thread's values go to shared memory of a block of the cluster, whose mbarrier is told.

Source: PTX ISA, "Data Movement and Conversion Instructions: st.async", "red.async".
"""

from __future__ import annotations

import numpy as np

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.bulk_copy import BY_BARRIER, REDUCTIONS, Finish, reduction
from simulators.gpu.instructions.copy_engine import PIECE, Copy
from simulators.gpu.instructions.modifiers import TYPES, VECTORS
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, flatten
from simulators.gpu.ptx.module import Instruction

_PASSED_BY = ("async", "weak", "relaxed", "cluster", "shared::cluster", BY_BARRIER)


def _decode(instruction: Instruction, scope: Scope, pc: int) -> Operation | None:
    """`[to], value, [mbarrier]`."""
    if "async" not in instruction.modifiers:
        return None
    own = [one for one in instruction.modifiers if one not in _PASSED_BY]
    count = VECTORS[own.pop(0)] if own and own[0] in VECTORS else 1
    reduces = instruction.opcode == "red"
    combine = None
    if reduces and len(own) == 2 and own[0] in REDUCTIONS:
        combine = reduction(instruction, own)[1]
        own = own[1:]
    if len(own) != 1 or own[0] not in TYPES or len(instruction.operands) != 3 or (combine is None) == reduces:
        raise UnsupportedInstruction(instruction)
    bits = TYPES[own[0]]
    size = bits // 8 * count
    to, value, barrier = instruction.operands
    sources = [scope.source(instruction, one, bits) for one in flatten(value)]
    if len(sources) != count or size not in (4, 8, PIECE):
        raise UnsupportedInstruction(instruction, f"it stores {len(sources)} values")
    address = scope.address(instruction, to)
    finish = Finish.decoded(instruction, scope, (barrier,))

    def run(machine: Machine, threads: Threads) -> None:
        numbers = machine.batch.numbers(threads)
        columns = [np.broadcast_to(one(machine, threads), len(numbers)) for one in sources]
        values = np.stack(columns, axis=1).view(f"u{min(size, 8)}")
        places = address(machine, threads)
        copy = Copy(
            instruction,
            size,
            numbers,
            "",
            places,  # it reads registers alone
            "shared",
            places,
            combine=combine,
            values=values if size == PIECE else values.ravel(),
        )
        finish.issue(machine, threads, copy, np.arange(len(numbers)), np.full(len(numbers), size, np.int64))

    return Straight(instruction, run)


DECODERS = {"st": _decode, "red": _decode}

"""What `.sync.aligned` instructions on fragments ask for: whole warps, or whole warpgroups, at one instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads, is_all
from simulators.gpu.chip import WARP
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.warp_meeting import complete_warps
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.scope import Scope, Source, flatten
from simulators.gpu.ptx.module import Instruction, Operand

Array = NDArray[Any]
WARPGROUP = 128  # threads: four warps, the first of which is a multiple of four in its block


def whole_warps(machine: Machine, instruction: Instruction, pc: int, threads: Threads) -> Threads:
    """Those whose whole warp is here; the rest are parked. Errors: SimulatorError if some of its threads have ended."""
    here = complete_warps(machine, instruction, pc, threads)
    if not is_all(here):
        numbers = machine.batch.numbers(here)
        warps = machine.batch.warp[numbers]
        lanes = np.bincount(warps, minlength=1)[warps]
        if (lanes < WARP).any():
            thread = int(numbers[lanes < WARP][0])
            raise machine.fault(instruction, thread, f"its warp has less than {WARP} threads that are alive")
    return here


def whole_warpgroups(machine: Machine, instruction: Instruction, pc: int, threads: Threads) -> Threads:
    """As `whole_warps`, of 128 threads."""
    batch = machine.batch
    parked = machine.unpark(pc)
    here = batch.union([threads, *parked]) if parked else threads
    if is_all(here) and batch.slot_threads % WARPGROUP == 0:
        return here
    numbers = batch.numbers(here)
    group = batch.slot.astype(np.intp) * (-(-batch.slot_threads // WARPGROUP)) + batch.in_block // WARPGROUP
    present = np.bincount(group[numbers])[group[numbers]]
    living = np.bincount(group[batch.alive], minlength=1)[group[numbers]]
    if (living < WARPGROUP).any():
        thread = int(numbers[living < WARPGROUP][0])
        raise machine.fault(instruction, thread, f"its warpgroup has less than {WARPGROUP} threads that are alive")
    has_come = present == WARPGROUP
    if not has_come.all():
        machine.park(pc, numbers[~has_come])
    return batch.as_set(numbers[has_come])


def by_warp(machine: Machine, threads: Threads, values: Array) -> Array:
    """[32 W], or one value for all, to [W, 32]."""
    return np.broadcast_to(values, machine.batch.count(threads)).reshape(-1, WARP)


def register_sources(
    instruction: Instruction, scope: Scope, operand: Operand, count: int, bits: int = 32
) -> list[Source]:
    """Errors: UnsupportedInstruction unless the operand is a vector of so many."""
    registers = flatten(operand)
    if len(registers) != count:
        raise UnsupportedInstruction(instruction, f"an operand has {len(registers)} registers; it must have {count}")
    return [scope.source(instruction, one, bits) for one in registers]

"""Where threads go: branches, and the end. Source: PTX ISA, "Control Flow Instructions"."""

from __future__ import annotations

from simulators.gpu.batch import Threads
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Branch, Exit, IndexedBranch, Operation, Run, Straight
from simulators.gpu.machine.scope import Scope
from simulators.gpu.ptx.module import Instruction, Kernel, Label


def decode(instruction: Instruction, scope: Scope, kernel: Kernel) -> Operation | None:
    """None for an instruction that is not about control."""
    match instruction.opcode:
        case "bra":
            (target,) = instruction.operands
            assert isinstance(target, Label)
            return Branch(instruction, target.target)
        case "brx":
            index, table = instruction.operands
            if not isinstance(table, Label) or table.name not in kernel.branch_targets:
                raise UnsupportedInstruction(instruction, "it names no list of targets")
            return IndexedBranch(instruction, scope.source(instruction, index, 32), kernel.branch_targets[table.name])
        case "ret" | "exit":
            return Exit(instruction)
        case "trap":
            return Straight(instruction, _trap(instruction))
        case "brkpt" | "nanosleep" | "pmevent" | "setmaxnreg" | "griddepcontrol":
            # A launch begins when the one before has ended, so nothing is left to wait for; registers are as many as
            # the kernel names; and sleeping takes no time.
            return Straight(instruction, _nothing)
    return None


def _nothing(machine: Machine, threads: Threads) -> None:
    pass


def _trap(instruction: Instruction) -> Run:
    def run(machine: Machine, threads: Threads) -> None:
        thread = int(machine.batch.numbers(threads)[0])
        raise SimulatorError(f"{machine.batch.describe(thread)} has reached a trap", instruction.place)

    return run

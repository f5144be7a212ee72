"""Loads and stores. Source: PTX ISA, "Data Movement and Conversion Instructions: ld, st"."""

from __future__ import annotations

import numpy as np

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.modifiers import memory_modifiers
from simulators.gpu.machine.access import Way, load, store
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, flatten
from simulators.gpu.memory.buffer import UNSIGNED
from simulators.gpu.ptx.module import Instruction


def _decode_load(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = memory_modifiers(instruction)
    way = Way(instruction, modifiers.space, modifiers.bits // 8, modifiers.count, modifiers.order, modifiers.scope)
    puts = scope.destinations(instruction, instruction.operands[0], signed=modifiers.type.startswith("s"))
    if len(puts) != modifiers.count:
        raise UnsupportedInstruction(instruction, f"it has {len(puts)} results where {modifiers.count} are loaded")
    address = scope.address(instruction, instruction.operands[1])

    def run(machine: Machine, threads: Threads) -> None:
        values = load(machine, way, address(machine, threads), threads)
        for put, value in zip(puts, values, strict=True):
            put(machine, threads, value)

    place = scope.place_of(instruction.operands[1]) if modifiers.space == "param" else None
    if place is None:
        return Straight(instruction, run, polls=modifiers.order != "weak")
    start, dtype = place, UNSIGNED[way.width]

    def run_alike(machine: Machine, threads: Threads) -> None:
        """Parameters are the same for all. Who watches is told of each thread's access, and of what is wrong."""
        parameters = machine.launch.parameters
        if machine.watchers or start % way.size or not 0 <= start <= len(parameters) - way.size:
            run(machine, threads)
            return
        for put, value in zip(puts, np.frombuffer(parameters, dtype, way.count, start), strict=True):
            put(machine, threads, value)

    return Straight(instruction, run_alike)


def _decode_store(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = memory_modifiers(instruction)
    way = Way(instruction, modifiers.space, modifiers.bits // 8, modifiers.count, modifiers.order, modifiers.scope)
    address = scope.address(instruction, instruction.operands[0])
    values = flatten(instruction.operands[1])
    if len(values) != modifiers.count:
        raise UnsupportedInstruction(instruction, f"it has {len(values)} values where {modifiers.count} are stored")
    sources = [scope.source(instruction, one, modifiers.bits) for one in values]

    def run(machine: Machine, threads: Threads) -> None:
        found = [one(machine, threads) for one in sources]
        store(machine, way, address(machine, threads), found, threads)

    return Straight(instruction, run)


def _decode_prefetch(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    """A hint: what is fetched early is the same."""
    return Straight(instruction, lambda machine, threads: None)


def _decode_policy(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    """A hint for others' hints: what it holds is nobody's business."""
    put = scope.destination(instruction, instruction.operands[0])
    return Straight(instruction, lambda machine, threads: put(machine, threads, np.array(0, np.uint64)))


DECODERS = {
    "ld": _decode_load,
    "ldu": _decode_load,
    "st": _decode_store,
    "prefetch": _decode_prefetch,
    "prefetchu": _decode_prefetch,
    "applypriority": _decode_prefetch,
    "discard": _decode_prefetch,
    "createpolicy": _decode_policy,
}

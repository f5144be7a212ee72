"""Atomics and reductions. Of threads that meet at one place, the one with the lower number comes first.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: atom, red".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.modifiers import MemoryModifiers, memory_modifiers
from simulators.gpu.machine.access import Way, update
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, flatten
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.table import elementwise_of

Array = NDArray[Any]
Combine = Callable[..., Array]  # (found, operand, ...) as unsigned bits to what is left
_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _decode_atomic(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = memory_modifiers(instruction, own=(*_OPERATIONS, "noftz", "ftz", "b128"))
    name = next((one for one in modifiers.rest if one in _OPERATIONS), "")
    has_result = instruction.opcode == "atom"
    operands = list(instruction.operands)
    destination = operands.pop(0) if has_result else None
    address = scope.address(instruction, operands.pop(0))
    if name == "" or len(operands) < (2 if name == "cas" else 1):
        raise UnsupportedInstruction(instruction)
    order = "relaxed" if modifiers.order == "weak" else modifiers.order
    way = Way(instruction, modifiers.space, modifiers.bits // 8, modifiers.count, order, modifiers.scope)
    used = operands[: 2 if name == "cas" else 1]  # a cache policy may follow
    sources = [[scope.source(instruction, one, modifiers.bits) for one in flatten(operand)] for operand in used]
    puts = scope.destinations(instruction, destination, signed=False) if destination is not None else []
    combine = combine_of(instruction, name, modifiers)

    def run(machine: Machine, threads: Threads) -> None:
        count = machine.batch.count(threads)
        values = [_columns([one(machine, threads) for one in operand], count) for operand in sources]
        addresses = address(machine, threads)
        found = update(
            machine, way, addresses, threads, lambda old, who: combine(old, *[value[who] for value in values])
        )
        columns = (found,) if found.ndim == 1 else tuple(np.ascontiguousarray(found.T))
        for put, column in zip(puts, columns, strict=False):
            put(machine, threads, column)

    return Straight(instruction, run, polls=True)


def _columns(elements: list[Array], count: int) -> Array:
    """[N], or [N, elements] of a vector."""
    wide = [np.broadcast_to(one, count) for one in elements]
    return wide[0] if len(wide) == 1 else np.stack(wide, axis=1)


def combine_of(instruction: Instruction, name: str, modifiers: MemoryModifiers) -> Combine:
    """What an operation of that name leaves. Errors: UnsupportedInstruction."""
    kind, bits = modifiers.type, modifiers.bits
    signed = np.dtype(f"i{bits // 8}")
    match name:
        case "exch":
            return lambda old, value: value
        case "cas":
            return lambda old, compare, value: np.where(old == compare, value, old)
        case "inc":
            return lambda old, limit: np.where(old >= limit, np.zeros_like(old), old + np.ones_like(old))
        case "dec":
            return lambda old, limit: np.where((old == 0) | (old > limit), limit, old - np.ones_like(old))
        case "and" | "or" | "xor":
            return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[name]
        case "add" if kind[0] in "usb" and kind[1:].isdigit():
            return lambda old, value: old + value
        case "min" | "max" if kind[0] in "us":
            function = np.minimum if name == "min" else np.maximum
            if kind[0] == "u":
                return function
            return lambda old, value: function(old.view(signed), np.ascontiguousarray(value).view(signed)).view(old.dtype)
    return _floating(instruction, name, modifiers)


def _floating(instruction: Instruction, name: str, modifiers: MemoryModifiers) -> Combine:
    """As the instruction for registers computes. f32 in global memory flushes denormals; in shared memory it does not
    (PTX ISA, "atom": `.ftz` of `atom.add.f32`)."""
    flushes = modifiers.type == "f32" and modifiers.space in ("global", "generic")
    rounding = ("rn",) if name == "add" else ()
    same = Instruction(
        name,
        (*rounding, *(("ftz",) if flushes else ()), modifiers.type),
        (instruction.operands[0],) * 3,  # as many as the instruction for registers has; what they are does not matter
        instruction.place,
        None,
        instruction.text,
    )
    meaning = elementwise_of(same)
    if meaning is None:
        raise UnsupportedInstruction(instruction)
    return meaning.function


DECODERS = {"atom": _decode_atomic, "red": _decode_atomic}

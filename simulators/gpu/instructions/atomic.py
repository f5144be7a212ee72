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
from simulators.gpu.instructions.atomic_scan import scan_of
from simulators.gpu.instructions.modifiers import MemoryModifiers, memory_modifiers
from simulators.gpu.machine.access import Way, reduce, update
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, Source, flatten
from simulators.gpu.numbers.arrays import as_float, select
from simulators.gpu.numbers.nan import has_nan, passed_on
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.table import elementwise_of

Array = NDArray[Any]
Combine = Callable[..., Array]  # (found, operand, ...) as unsigned bits to what is left


def _decode_atomic(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = memory_modifiers(instruction, own=(*_NAMES, "noftz", "ftz"))
    name = next((one for one in modifiers.rest if one in _NAMES), "")
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
    scan = scan_of(name, modifiers.type) if modifiers.count == 1 else None
    is_integer = modifiers.type in ("u32", "s32", "b32", "u64", "s64", "b64")
    if not has_result and is_integer and modifiers.count == 1 and name in _UNORDERED:
        signed = modifiers.type[0] == "s" and name in ("min", "max")
        return _decode_unordered(instruction, way, address, sources[0][0], _UNORDERED[name], signed=signed)

    def run(machine: Machine, threads: Threads) -> None:
        count = machine.batch.count(threads)
        values = [columns([one(machine, threads) for one in operand], count) for operand in sources]
        addresses = address(machine, threads)

        def compute(found: Array, who: Array) -> Array:
            return combine(found, *[value[who] for value in values])

        def scan_there(found: Array, who: Array) -> Array | None:
            assert scan is not None
            return scan(found, *[value[who] for value in values])

        found = update(machine, way, addresses, threads, compute, None if scan is None else scan_there)
        elements = (found,) if found.ndim == 1 else tuple(np.ascontiguousarray(found.T))
        for put, element in zip(puts, elements, strict=False):
            put(machine, threads, element)

    return Straight(instruction, run, polls=has_result)


def _decode_unordered(
    instruction: Instruction, way: Way, address: Source, value: Source, function: np.ufunc, *, signed: bool
) -> Operation:
    """Nobody sees in which order the threads come."""
    dtype = np.dtype(f"{'i' if signed else 'u'}{way.width}")

    def run(machine: Machine, threads: Threads) -> None:
        values = np.ascontiguousarray(np.broadcast_to(value(machine, threads), machine.batch.count(threads)))
        reduce(machine, way, address(machine, threads), threads, function, values.view(dtype))

    return Straight(instruction, run)


def columns(elements: list[Array], count: int) -> Array:
    """[N], or [N, elements] of a vector."""
    wide = [np.broadcast_to(one, count) for one in elements]
    return wide[0] if len(wide) == 1 else np.stack(wide, axis=1)


def combine_of(instruction: Instruction, name: str, modifiers: MemoryModifiers) -> Combine:
    """What an operation of that name leaves. Errors: UnsupportedInstruction."""
    kind, bits = modifiers.type, modifiers.bits
    if name in _OF_BITS:
        return _OF_BITS[name]
    if not (kind[0] in "usb" and kind[1:].isdigit()):
        return _floating(instruction, name, modifiers)
    if bits == 128 or (name in ("min", "max") and kind[0] == "b"):
        raise UnsupportedInstruction(instruction)
    function = _OF_INTEGERS[name]
    if name not in ("min", "max") or kind[0] == "u":
        return function
    signed = np.dtype(f"i{bits // 8}")
    return lambda old, value: function(old.view(signed), np.ascontiguousarray(value).view(signed)).view(old.dtype)


def _swapped_if_equal(old: Array, compare: Array, value: Array) -> Array:
    return np.where(np.asarray(old == compare), value, old)


_OF_BITS: dict[str, Combine] = {"exch": lambda old, value: value, "cas": _swapped_if_equal}
_OF_INTEGERS: dict[str, Combine] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, limit: np.where(old >= limit, np.zeros_like(old), old + np.ones_like(old)),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - np.ones_like(old)),
}
_NAMES = (*_OF_BITS, *_OF_INTEGERS)
_UNORDERED: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _floating(instruction: Instruction, name: str, modifiers: MemoryModifiers) -> Combine:
    """As the instruction for registers computes. f32 in global memory flushes denormals; in shared memory it does not
    (PTX ISA, "atom": `.ftz` of `atom.add.f32`)."""
    if modifiers.type == "f64" and name == "add":
        return _add_f64(is_shared=modifiers.space.startswith("shared"))
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


def _add_f64(*, is_shared: bool) -> Combine:
    """A NaN that is there stays, before one that is added. In shared memory it is made quiet: the sum is that of
    registers. In global memory it is left as it is (an H200; which of two NaN stays there was not tried)."""

    def add(old: Array, value: Array) -> Array:
        total = as_float(old) + as_float(value)
        bits = passed_on(total, (old, value))
        if is_shared or not has_nan(total):
            return bits
        bits = select(np.isnan(as_float(value)), value, bits)
        return select(np.isnan(as_float(old)), old, bits)

    return add


DECODERS = {"atom": _decode_atomic, "red": _decode_atomic}

"""`multimem`: loads that reduce, stores and reductions through a multicast window, at all of its replicas.

A load of each replica, one after another, in the order in which the window names them, is combined as these
instructions for registers do it: in the type's own precision, or, with `.acc::f32`, in float32, which is rounded once
at the end. Neither the order nor the roundings in between are documented for a chip, and denormals of f32 are kept
here. A reduction is an atomic of each replica by itself. What PTX leaves undefined is an error: a plain address here,
and the address of a window in any other instruction.

Source: PTX ISA, "Data Movement and Conversion Instructions: multimem"; which forms exist, ptxas says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.atomic import columns, combine_of
from simulators.gpu.instructions.modifiers import SCOPES, TYPES, VECTORS, MemoryModifiers, memory_modifiers
from simulators.gpu.machine.access import Way, load_replicas, store, update
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, Source, flatten
from simulators.gpu.numbers.arrays import join, split
from simulators.gpu.numbers.half import OF_FLOAT32, TO_FLOAT32
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.table import elementwise_of

Array = NDArray[Any]
Combine = Callable[[Sequence[Array]], Array]  # what the replicas hold, as bits, to one

_ORDERS: dict[str, tuple[str, ...]] = {
    "ld_reduce": ("weak", "relaxed", "acquire"),
    "st": ("weak", "relaxed", "release"),
    "red": ("relaxed", "release"),
}
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_MINIMA = ("u32", "s32", "u64", "s64")
_TYPES = dict.fromkeys(("and", "or", "xor"), ("b32", "b64")) | {
    "add": ("u32", "s32", "u64", *_HALVES, "f32", "f64"),
    "min": (*_MINIMA, *_HALVES),
    "max": (*_MINIMA, *_HALVES),
}
_STORED = ("b32", "b64", *_MINIMA, *_HALVES, "f32", "f64")
# Elements: of one that is not here, a single one.
_COUNTS = dict.fromkeys(("f16", "bf16"), (2, 4, 8)) | dict.fromkeys(("f16x2", "bf16x2", "f32"), (1, 2, 4))
_WIDE_SUM = "acc::f32"


def _decode(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    action, *rest = instruction.modifiers
    if action not in _ORDERS:
        raise UnsupportedInstruction(instruction)
    known = {"global", *_ORDERS[action], *SCOPES, *VECTORS, *TYPES, *(() if action == "st" else _TYPES)}
    for one in rest:
        if one not in known and (one != _WIDE_SUM or action != "ld_reduce"):
            raise UnsupportedInstruction(instruction, f"modifier .{one} is unknown")
    modifiers = memory_modifiers(replace(instruction, modifiers=tuple(rest)), own=(*_TYPES, _WIDE_SUM))
    has_order = any(one in ("relaxed", "acquire", "release") for one in rest)
    if has_order != any(one in SCOPES for one in rest):
        raise UnsupportedInstruction(instruction, "an order other than .weak and a scope go together")
    _check_types(instruction, action, modifiers)
    way = Way(
        instruction,
        modifiers.space,
        modifiers.bits // 8,
        modifiers.count,
        modifiers.order,
        modifiers.scope,
        is_multicast=True,
    )
    operands = instruction.operands[::-1] if action == "ld_reduce" else instruction.operands
    place, values = operands
    if len(flatten(values)) != way.count:
        raise UnsupportedInstruction(instruction, f"it has {len(flatten(values))} values where {way.count} are moved")
    address = scope.address(instruction, place)
    if action == "ld_reduce":
        return _load(instruction, scope, modifiers, way, address)
    sources = [scope.source(instruction, one, modifiers.bits) for one in flatten(values)]
    return _store(way, address, sources) if action == "st" else _update(modifiers, way, address, sources)


def _check_types(instruction: Instruction, action: str, modifiers: MemoryModifiers) -> None:
    """Errors: UnsupportedInstruction for a type that the operation, or the vector, has not."""
    names = [one for one in modifiers.rest if one in _TYPES]
    if len(names) != (0 if action == "st" else 1):
        raise UnsupportedInstruction(instruction, "it has one of " + ", ".join(f".{one}" for one in _TYPES))
    types = _TYPES[names[0]] if names else _STORED
    if modifiers.type not in types or (action == "red" and names[0] != "add" and modifiers.type in _HALVES):
        raise UnsupportedInstruction(instruction, f"type .{modifiers.type} is not")
    if modifiers.count not in _COUNTS.get(modifiers.type, (1,)):
        raise UnsupportedInstruction(instruction, f"type .{modifiers.type} is not in {modifiers.count} elements")
    if _WIDE_SUM in modifiers.rest and (names[0] != "add" or modifiers.type not in _HALVES):
        raise UnsupportedInstruction(instruction, f".{_WIDE_SUM} is for .add of 16-bit floats")


def _load(instruction: Instruction, scope: Scope, modifiers: MemoryModifiers, way: Way, address: Source) -> Operation:
    combine = _wide_sum(modifiers) if _WIDE_SUM in modifiers.rest else _in_own_precision(instruction, modifiers)
    puts = scope.destinations(instruction, instruction.operands[0], signed=modifiers.type.startswith("s"))

    def run(machine: Machine, threads: Threads) -> None:
        windows = load_replicas(machine, way, address(machine, threads), threads)
        results = [np.empty(machine.batch.count(threads), f"u{way.width}") for _ in puts]
        for which, replicas in windows:
            for result, elements in zip(results, zip(*replicas, strict=True), strict=True):
                result[slice(None) if which is None else which] = combine(elements)
        for put, result in zip(puts, results, strict=True):
            put(machine, threads, result)

    return Straight(instruction, run, polls=way.order != "weak")


def _store(way: Way, address: Source, sources: Sequence[Source]) -> Operation:
    def run(machine: Machine, threads: Threads) -> None:
        values = [one(machine, threads) for one in sources]
        store(machine, way, address(machine, threads), values, threads)

    return Straight(way.instruction, run)


def _update(modifiers: MemoryModifiers, way: Way, address: Source, sources: Sequence[Source]) -> Operation:
    """As `red` does it in global memory, f32 with denormals as zeros. It is always strong, and by itself of the widest
    scope."""
    if way.order == "weak":
        way = replace(way, order="relaxed", scope="sys")
    name = next(one for one in modifiers.rest if one in _TYPES)
    combine = combine_of(way.instruction, name, modifiers)

    def run(machine: Machine, threads: Threads) -> None:
        values = columns([one(machine, threads) for one in sources], machine.batch.count(threads))
        places = address(machine, threads)
        update(machine, way, places, threads, lambda found, who: combine(found, values[who]))

    return Straight(way.instruction, run)


def _in_own_precision(instruction: Instruction, modifiers: MemoryModifiers) -> Combine:
    name, kind = next(one for one in modifiers.rest if one in _TYPES), modifiers.type
    rounding = ("rn",) if name == "add" and "f" in kind else ()
    # As many operands as the instruction for registers has; what they are does not matter.
    three = (instruction.operands[0],) * 3
    meaning = elementwise_of(replace(instruction, opcode=name, modifiers=(*rounding, kind), operands=three))
    if meaning is None:
        raise UnsupportedInstruction(instruction)
    function = meaning.function
    return lambda replicas: reduce(function, replicas)


def _wide_sum(modifiers: MemoryModifiers) -> Combine:
    """Of f16 or bf16, or pairs of them, in float32."""
    name, bits = modifiers.type.removesuffix("x2"), modifiers.bits
    widen, narrow = TO_FLOAT32[name], OF_FLOAT32[name]

    def combine(replicas: Sequence[Array]) -> Array:
        total = reduce(np.add, [widen(split(one, 16)) for one in replicas])
        return np.asarray(join(narrow(total), bits))

    return combine


DECODERS = {"multimem": _decode}

"""Tensor maps that a kernel changes, and copies from shared to global memory for the copy engine to use.

Source: PTX ISA, "Tensor Map Instructions: tensormap.replace", "tensormap.cp_fenceproxy".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.warp_meeting import complete_warps
from simulators.gpu.machine.access import Way, load, store, update
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Meeting, Operation, Straight
from simulators.gpu.machine.scope import Scope
from simulators.gpu.memory.tensor_map import READ, SIZE, TensorMapError, replaced
from simulators.gpu.ptx.module import Immediate, Instruction

Array = NDArray[Any]
_WIDE = ("global_address", "global_stride")  # fields whose values have 64 bits
_BY_DIMENSION = ("box_dim", "global_dim", "global_stride", "element_stride")
_PLAIN = ("rank", "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode")
_SPACES = ("global", "shared::cta")


def _decode(instruction: Instruction, scope: Scope, pc: int) -> Operation | None:
    match instruction.modifiers:
        case ("replace", "tile", field, *rest) if field in (*_WIDE, *_BY_DIMENSION, *_PLAIN):
            return _decode_replace(instruction, scope, field, rest)
        case ("cp_fenceproxy", "global", "shared::cta", *rest):
            return _decode_copy(instruction, scope, pc, rest)
    return None


def _decode_replace(instruction: Instruction, scope: Scope, field: str, rest: list[str]) -> Operation:
    """`[map] {, dimension}, value`."""
    space = rest.pop(0) if rest[0] in _SPACES else "generic"
    bits = 64 if field in _WIDE else 32
    if rest != ["b1024", f"b{bits}"]:
        raise UnsupportedInstruction(instruction)
    address = scope.address(instruction, instruction.operands[0])
    value = scope.source(instruction, instruction.operands[-1], bits)
    dimension = instruction.operands[1] if field in _BY_DIMENSION else Immediate(0)
    if not isinstance(dimension, Immediate) or len(instruction.operands) != (3 if field in _BY_DIMENSION else 2):
        raise UnsupportedInstruction(instruction, "its operands are not those of the field")
    way = Way(instruction, space, 8, READ // 8)

    def run(machine: Machine, threads: Threads) -> None:
        numbers = machine.batch.numbers(threads)
        values = np.broadcast_to(value(machine, threads), len(numbers))

        def changed(found: Array, who: Array) -> Array:
            left = np.empty_like(found)
            for i, which in enumerate(who):
                try:
                    data = replaced(found[i].tobytes(), field, dimension.value, int(values[which]))
                except TensorMapError as error:
                    raise machine.fault(instruction, int(numbers[which]), str(error)) from None
                left[i] = np.frombuffer(data, np.uint64)
            return left

        update(machine, way, address(machine, threads), threads, changed)

    return Straight(instruction, run)


def _decode_copy(instruction: Instruction, scope: Scope, pc: int, rest: list[str]) -> Operation:
    """A warp copies a map, and fences it."""
    known = {"tensormap::generic", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "sync", "aligned"}
    to, of, size = instruction.operands
    if set(rest) - known or not isinstance(size, Immediate) or size.value != SIZE:
        raise UnsupportedInstruction(instruction)
    to_address, of_address = scope.address(instruction, to), scope.address(instruction, of)
    read = Way(instruction, "shared::cta", 8, SIZE // 8)
    write = Way(instruction, "global", 8, SIZE // 8)

    def meet(machine: Machine, threads: Threads) -> Threads:
        here = complete_warps(machine, instruction, pc, threads)
        if not machine.batch.count(here):
            return here
        numbers = machine.batch.numbers(here)
        _, first = np.unique(machine.batch.warp[numbers], return_index=True)
        one_of_each = numbers[first]
        values = load(machine, read, of_address(machine, here)[first], one_of_each)
        store(machine, write, to_address(machine, here)[first], values, one_of_each)
        return here

    return Meeting(instruction, meet)


DECODERS = {"tensormap": _decode}

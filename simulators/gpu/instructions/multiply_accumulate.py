"""mma.sync: D = A B + C, of tiles that a warp's threads hold as fragments. Source: PTX ISA, "mma"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.fragments import (
    GROUPS,
    columns_of_registers,
    registers_of_sums,
    rows_of_registers,
    sums_of_registers,
)
from simulators.gpu.instructions.whole_warps import by_warp, register_sources, whole_warps
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Meeting, Operation
from simulators.gpu.machine.scope import Scope, Source
from simulators.gpu.numbers.tensor_core import (
    WHOLE,
    multiply_add,
    multiply_add_float64,
    multiply_add_fp8,
    multiply_add_integers,
)
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]
LANES = 32
ELEMENT_BITS = {"f64": 64, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
_HALF, _FP8, _BYTES, _NIBBLES = ("f16", "bf16"), ("e4m3", "e5m2"), ("s8", "u8"), ("s4", "u4")
# By the factors' types: the accumulators, and the shapes (m, k).
_FORMS: dict[str, tuple[tuple[str, ...], tuple[tuple[int, int], ...]]] = {
    "f16": (("f32", "f16"), ((16, 8), (16, 16))),
    "bf16": (("f32",), ((16, 8), (16, 16))),
    "tf32": (("f32",), ((16, 4), (16, 8))),
    **dict.fromkeys(_FP8, (("f32", "f16"), ((16, 16), (16, 32)))),
    **dict.fromkeys(_BYTES, (("s32",), ((8, 16), (16, 16), (16, 32)))),
    **dict.fromkeys(_NIBBLES, (("s32",), ((8, 32), (16, 32), (16, 64)))),
    "f64": (("f64",), ((8, 4), (16, 4), (16, 8), (16, 16))),
}
_ALIKE = (*_HALF, "tf32", "f64")  # both factors must be of one type


def integers(codes: Array, kind: str) -> Array:
    """s8, u8, s4 or u4 codes as int16."""
    if kind == "s8":
        return codes.view(np.int8).astype(np.int16)
    values = codes.astype(np.int16)
    return np.where(values >= 8, values - 16, values).astype(np.int16) if kind == "s4" else values


def _decode_mma(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = instruction.modifiers
    if any(one.startswith(("kind::", "block_scale", "scale_vec")) for one in modifiers):
        raise UnsupportedInstruction(instruction, "block scales and .kind are not simulated")
    saturates = "satfinite" in modifiers
    plain = tuple(one for one in modifiers if one != "satfinite")
    shape = re.fullmatch(r"m(\d+)n8k(\d+)", plain[2]) if len(plain) == 9 else None
    if shape is None or plain[:2] != ("sync", "aligned") or plain[3:5] != ("row", "col"):
        raise UnsupportedInstruction(instruction, "the form .sync.aligned.mXn8kX.row.col.d.a.b.c is known")
    m, k = (int(extent) for extent in shape.groups())
    result, a, b, accumulator = plain[5:]
    accumulators, shapes = _FORMS.get(a, ((), ()))
    alike = a == b if a in _ALIKE else (ELEMENT_BITS.get(a), a in _FP8) == (ELEMENT_BITS.get(b), b in _FP8)
    if result != accumulator or result not in accumulators or (m, k) not in shapes or not alike:
        raise UnsupportedInstruction(instruction, "these types or this shape are not known")
    if saturates and result != "s32":
        raise UnsupportedInstruction(instruction, ".satfinite is of integers")

    register_bits = 64 if a == "f64" else 32
    sum_bits = 16 if result == "f16" else register_bits
    unit = LANES * register_bits
    counts = m * k * ELEMENT_BITS[a] // unit, GROUPS * k * ELEMENT_BITS[b] // unit, m * GROUPS * sum_bits // unit
    of_a, of_b, of_c = (
        register_sources(instruction, scope, operand, count, register_bits)
        for operand, count in zip(instruction.operands[1:], counts, strict=True)
    )
    puts = scope.destinations(instruction, instruction.operands[0])
    if len(puts) != counts[2]:
        raise UnsupportedInstruction(instruction, f"it has {len(puts)} results; it must have {counts[2]}")

    def meet(machine: Machine, threads: Threads) -> Threads:
        here = whole_warps(machine, instruction, pc, threads)
        if machine.batch.count(here):
            left = rows_of_registers(_held(machine, here, of_a), ELEMENT_BITS[a], m)
            right = columns_of_registers(_held(machine, here, of_b), ELEMENT_BITS[b])
            addend = sums_of_registers(_held(machine, here, of_c), sum_bits, m)
            sums = _product(left, right, addend, (result, a, b), saturates)
            for put, value in zip(puts, registers_of_sums(sums, register_bits), strict=True):
                put(machine, here, value)
        return here

    return Meeting(instruction, meet)


def _held(machine: Machine, threads: Threads, sources: Sequence[Source]) -> list[Array]:
    return [by_warp(machine, threads, one(machine, threads)) for one in sources]


def _product(a: Array, b: Array, c: Array, types: tuple[str, str, str], saturates: bool) -> Array:
    _, left, right = types
    if left == "f64":
        return multiply_add_float64(a, b, c)
    if left in _FP8:
        return multiply_add_fp8(a, b, c, types)
    if left in (*_BYTES, *_NIBBLES):
        return multiply_add_integers(integers(a, left), integers(b, right), c, saturates)
    return multiply_add(a, b, c, types, WHOLE)


DECODERS = {"mma": _decode_mma}

"""Runs one instruction on arrays: a line of PTX, without a parser, and bits of operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import UNSIGNED
from simulators.gpu.ptx.module import Immediate, Instruction, Operand, Pair, Place, Register, Vector
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.table import elementwise_of


def register(kind: str = "b32") -> Register:
    return Register("%r", kind)


def vector(count: int) -> Vector:
    return Vector((register(),) * count)


def pair() -> Pair:
    return Pair(register(), register())


def instruction(name: str, *operands: Operand, count: int = 4) -> Instruction:
    """Without operands: `count` registers of 32 bits."""
    opcode, *modifiers = name.split(".")
    return Instruction(opcode, tuple(modifiers), operands or (register(),) * count, Place(7), text=name)


def meaning(name: str, *operands: Operand, count: int = 4) -> Elementwise:
    found = elementwise_of(instruction(name, *operands, count=count))
    assert found is not None
    return found


def run(name: str, *values: Any, operands: tuple[Operand, ...] = ()) -> Any:
    """Values are integers, or sequences of them; negative ones are two's complements. One array, or a tuple of them."""
    known = meaning(name, *operands, count=1 + len(values))
    arrays = [bits(value, width) for value, width in zip(values, known.operands, strict=True)]
    with np.errstate(all="ignore"):
        results = known.function(*arrays)
    each = results if isinstance(results, tuple) else (results,)
    for result, width in zip(each, known.results, strict=True):
        assert result.dtype == UNSIGNED[width]
        assert not any(np.shares_memory(result, array) for array in arrays)
    return results


def bits(values: Any, width: int) -> Any:
    mask = (1 << width) - 1
    return np.array([int(value) & mask for value in np.atleast_1d(np.asarray(values, object))], UNSIGNED[width])


def one(name: str, *values: int, operands: tuple[Operand, ...] = ()) -> int:
    """Of one thread, an instruction with one result."""
    return int(run(name, *values, operands=operands)[0])


def immediate(value: int) -> Immediate:
    return Immediate(value)

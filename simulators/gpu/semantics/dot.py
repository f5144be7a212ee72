"""dp4a and dp2a: dot products of bytes that are added to a 32-bit integer. PTX ISA 9.7.1.23, 9.7.1.24."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers

TYPES = ("u32", "s32")


def field(bits: Any, index: int, width: int, type_name: str) -> Any:
    """One of the fields of a word, extended to 32 bits."""
    word = np.uint32
    raised = bits << word(32 - width * (index + 1))
    if type_name == "u32":
        return raised >> word(32 - width)
    return (raised.view(np.int32) >> np.int32(32 - width)).view(word)


def dp4a(instruction: Instruction) -> Elementwise:
    """dp4a.atype.btype d, a, b, c: four bytes of a times four bytes of b."""
    modifiers = Modifiers(instruction)
    b_type, a_type = modifiers.type(TYPES), modifiers.type(TYPES)
    modifiers.end()

    def summed(a: Any, b: Any, c: Any) -> Any:
        for index in range(4):
            c = c + field(a, index, 8, a_type) * field(b, index, 8, b_type)
        return c

    return Elementwise((32,), (32, 32, 32), summed)


def dp2a(instruction: Instruction) -> Elementwise:
    """dp2a.lo.atype.btype d, a, b, c: two halves of a times the lower (.hi: the upper) two bytes of b."""
    modifiers = Modifiers(instruction)
    b_type, a_type = modifiers.type(TYPES), modifiers.type(TYPES)
    first = 0 if modifiers.one_of(("lo", "hi")) == "lo" else 2
    modifiers.end()

    def summed(a: Any, b: Any, c: Any) -> Any:
        for index in range(2):
            c = c + field(a, index, 16, a_type) * field(b, first + index, 8, b_type)
        return c

    return Elementwise((32,), (32, 32, 32), summed)


RESOLVERS = {"dp4a": dp4a, "dp2a": dp2a}

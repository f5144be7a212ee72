"""prmt: bytes of two registers in any order. PTX ISA 9.7.8.7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulators.gpu.ptx.module import Immediate, Instruction
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers

SIGN = 8  # in a selector: the byte's top bit, eight times
# The selectors of the four bytes of the result, from the lowest, for each value of the third operand's two lowest bits.
MODES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def by_constant(selectors: Sequence[int]) -> Callable[..., Any]:
    """Selectors that are known: bytes that move by the same way are moved together."""
    word = np.uint32
    masks: dict[tuple[int, int], int] = {}  # (operand, bytes upward) -> where such bytes arrive
    for place, selector in enumerate(selectors):
        operand, source = divmod(selector & 7, 4)
        key = (operand, place - source)
        masks[key] = masks.get(key, 0) | (0xFF << (8 * place))

    def permuted(*operands: Any) -> Any:
        result: Any = word(0)
        for (operand, way), mask in masks.items():
            bits = operands[operand]
            moved = bits << word(8 * way) if way >= 0 else bits >> word(-8 * way)
            result = result | (moved & word(mask))
        return result

    return permuted


def by_selector(a: Any, b: Any, selector: Any) -> Any:
    """Four bits of the selector a byte: which byte, and whether its sign is spread."""
    word = np.uint32
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    result: Any = word(0)
    for place in range(4):
        nibble = (selector >> word(4 * place)) & word(15)
        byte = (both >> ((nibble & word(7)) << word(3)).astype(np.uint64)).astype(word) & word(0xFF)
        sign = (byte >> word(7)) * word(0xFF)
        spread = nibble >> word(3)
        byte = byte ^ ((byte ^ sign) * spread)
        result = result | (byte << word(8 * place))
    return result


def by_mode(mode: str) -> Callable[..., Any]:
    """A fixed order for each value of the third operand's lowest two bits."""
    words = [sum(selector << (4 * place) for place, selector in enumerate(row)) for row in MODES[mode]]
    table = np.array(words, np.uint32)
    return lambda a, b, c: by_selector(a, b, table[c & np.uint32(3)])


def prmt(instruction: Instruction) -> Elementwise:
    """prmt.b32 d, a, b, selector; prmt.b32.f4e and the other modes."""
    modifiers = Modifiers(instruction)
    mode = modifiers.optional(MODES)
    modifiers.type(("b32",))
    modifiers.end()
    if mode is not None:
        return Elementwise((32,), (32, 32, 32), by_mode(mode))
    selector = instruction.operands[3]
    if isinstance(selector, Immediate):
        nibbles = [(selector.value >> (4 * place)) & 15 for place in range(4)]
        if not any(nibble & SIGN for nibble in nibbles):
            permuted = by_constant(nibbles)
            return Elementwise((32,), (32, 32, 32), lambda a, b, _: permuted(a, b))
    return Elementwise((32,), (32, 32, 32), by_selector)

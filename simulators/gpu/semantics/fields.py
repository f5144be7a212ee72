"""Bit fields: bfe, bfi, bmsk, szext. PTX ISA 9.7.1."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import UNSIGNED
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.bits import amount, shifted_with_sign
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

# Of positions and lengths PTX says that eight bits count; of 64-bit fields an H200 counts all of them.
FIELD_BITS = {32: np.uint32(0xFF), 64: np.uint32(0xFFFFFFFF)}


def low_bits(count: Any, width: int) -> Any:
    """A mask of the lowest bits; the count is clamped to the width."""
    one = UNSIGNED[width](1)
    return (one << amount(count, width)) - one


def extended(bits: Any, length: Any, width: int) -> Any:
    """The lowest bits with their sign; of no bits: zero."""
    beyond = UNSIGNED[width](width) - amount(length, width)
    return shifted_with_sign(bits << beyond, beyond)


def bfe(instruction: Instruction) -> Elementwise:
    """bfe d, a, position, length: a field, extended with zeros or with its sign."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("u32", "u64", "s32", "s64"))
    modifiers.end()
    width = bits_of(type_name)
    seen = FIELD_BITS[width]

    def unsigned_field(a: Any, position: Any, length: Any) -> Any:
        return (a >> amount(position & seen, width)) & low_bits(length & seen, width)

    def signed_field(a: Any, position: Any, length: Any) -> Any:
        low = shifted_with_sign(a, amount(position & seen, width))
        return extended(low, length & seen, width)

    return Elementwise((width,), (width, 32, 32), signed_field if type_name.startswith("s") else unsigned_field)


def bfi(instruction: Instruction) -> Elementwise:
    """bfi f, a, b, position, length: the lowest bits of a into b."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type(("b32", "b64")))
    modifiers.end()
    seen = FIELD_BITS[width]

    def inserted(a: Any, b: Any, position: Any, length: Any) -> Any:
        by = amount(position & seen, width)
        return select_bits(low_bits(length & seen, width) << by, a << by, b)

    return Elementwise((width,), (width, width, 32, 32), inserted)


def select_bits(mask: Any, a: Any, b: Any) -> Any:
    return b ^ ((a ^ b) & mask)


def bmsk(instruction: Instruction) -> Elementwise:
    """bmsk d, a, b: b ones from bit a on."""
    modifiers = Modifiers(instruction)
    modifiers.type(("b32",))
    wraps = modifiers.one_of(("wrap", "clamp")) == "wrap"
    modifiers.end()
    five = np.uint32(31)

    def mask(a: Any, b: Any) -> Any:
        a, b = (a & five, b & five) if wraps else (a, b)
        return low_bits(b, 32) << amount(a, 32)

    return Elementwise((32,), (32, 32), mask)


def szext(instruction: Instruction) -> Elementwise:
    """szext d, a, b: the lowest b bits of a, extended with zeros or with their sign."""
    modifiers = Modifiers(instruction)
    is_signed = modifiers.type(("u32", "s32")) == "s32"
    wraps = modifiers.one_of(("wrap", "clamp")) == "wrap"
    modifiers.end()

    def function(a: Any, b: Any) -> Any:
        length = b & np.uint32(31) if wraps else b
        return extended(a, length, 32) if is_signed else a & low_bits(length, 32)

    return Elementwise((32,), (32, 32), function)


RESOLVERS = {"bfe": bfe, "bfi": bfi, "bmsk": bmsk, "szext": szext}

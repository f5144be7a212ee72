"""Integer arithmetic: add to mad24, sad, div, rem, min, max, and the carry forms. PTX ISA 9.7.1 and 9.7.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import SIGNED, UNSIGNED, as_signed, as_unsigned, by_lanes, select, width_of
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
PAIRS = ("u16x2", "s16x2")
Function = Callable[..., Any]


def saturated(wide: Any) -> Any:
    """int64 values clamped to s32, as bits."""
    return as_unsigned(np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32))


def wide_s32(bits: Any) -> Any:
    return as_signed(bits).astype(np.int64)


def full_product(type_name: str) -> Function:
    """Both operands of 16 or 32 bits to the product of twice the width, as bits."""
    width = bits_of(type_name)
    if type_name.startswith("u"):
        return lambda a, b: np.multiply(a.astype(UNSIGNED[2 * width]), b, dtype=UNSIGNED[2 * width])
    wide = SIGNED[2 * width]
    return lambda a, b: as_unsigned(np.multiply(as_signed(a).astype(wide), as_signed(b), dtype=wide))


def high_u64(a: Any, b: Any) -> Any:
    """Upper 64 bits of a product, by 32-bit halves."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low)
    return a_high * b_high + (middle >> half) + (other >> half)


def high_s64(a: Any, b: Any) -> Any:
    sign = np.uint64(63)
    return high_u64(a, b) - b * (a >> sign) - a * (b >> sign)


def product(type_name: str, part: str) -> Function:
    """mul.lo, mul.hi, mul.wide."""
    width = bits_of(type_name)
    if part == "lo":
        return lambda a, b: a * b
    if part == "wide":
        return full_product(type_name)
    if width == 64:
        return high_u64 if type_name == "u64" else high_s64
    multiply, shift, word = full_product(type_name), UNSIGNED[2 * width](width), UNSIGNED[width]
    return lambda a, b: (multiply(a, b) >> shift).astype(word)


def quotient_and_remainder(is_signed: bool) -> Function:
    """Truncated division. By zero both are all ones, as compiled code on the chip gives; PTX leaves it open."""

    def of_unsigned(a: Any, b: Any) -> tuple[Any, Any]:
        quotient = a // b
        remainder = a - quotient * b
        if not np.all(b):
            ones = ~a.dtype.type(0)
            quotient, remainder = select(b == 0, ones, quotient), select(b == 0, ones, remainder)
        return quotient, remainder

    def of_signed(a: Any, b: Any) -> tuple[Any, Any]:
        top = a.dtype.type(width_of(a) - 1)
        a_sign, b_sign = np.negative(a >> top), np.negative(b >> top)  # all ones where negative
        quotient, remainder = of_unsigned((a ^ a_sign) - a_sign, (b ^ b_sign) - b_sign)
        sign = a_sign ^ b_sign
        quotient, remainder = (quotient ^ sign) - sign, (remainder ^ a_sign) - a_sign
        if not np.all(b):
            ones = ~a.dtype.type(0)
            quotient, remainder = select(b == 0, ones, quotient), select(b == 0, ones, remainder)
        return quotient, remainder

    return of_signed if is_signed else of_unsigned


def lower(a: Any, b: Any) -> Any:
    return np.minimum(a, b)


def higher(a: Any, b: Any) -> Any:
    return np.maximum(a, b)


def of_type(type_name: str, function: Function) -> Function:
    """A function of integers, on bits that are seen as the type's integers."""
    if type_name.startswith("u"):
        return function
    return lambda *operands: as_unsigned(function(*(as_signed(bits) for bits in operands)))


def sum_(instruction: Instruction) -> Elementwise:
    """add and sub: .sat.s32, .cc, and two 16-bit lanes."""
    modifiers = Modifiers(instruction)
    is_sub = instruction.opcode == "sub"
    type_name = modifiers.type((*INTEGERS, *PAIRS))
    width = bits_of(type_name)
    operation: Function = np.subtract if is_sub else np.add
    if modifiers.has("cc"):
        modifiers.end()
        return with_carry(instruction, type_name, reads=False)
    if type_name == "s32" and modifiers.has("sat"):
        modifiers.end()
        return Elementwise((32,), (32, 32), lambda a, b: saturated(operation(wide_s32(a), wide_s32(b))))
    modifiers.end()
    if type_name in PAIRS:
        operation = by_lanes(operation, 16, 32)
    return Elementwise((width,), (width, width), operation)


def with_carry(instruction: Instruction, type_name: str, reads: bool) -> Elementwise:
    """add.cc, sub.cc, addc, subc. The flag of sub is a borrow."""
    width = bits_of(type_name)
    if width not in (32, 64):
        raise Modifiers(instruction).refuse("carry of 16 bits")
    is_sub, writes = instruction.opcode.startswith("sub"), "cc" in instruction.modifiers

    def summed(a: Any, b: Any, *carry: Any) -> Any:
        first = a - b if is_sub else a + b
        overflow = first > a if is_sub else first < a
        result = first
        if carry:
            flag = carry[0].astype(first.dtype)
            result = first - flag if is_sub else first + flag
            overflow = overflow | (result > first if is_sub else result < first)
        return (result, overflow) if writes else result

    results, operands = ((width, 1) if writes else (width,)), ((width, width, 1) if reads else (width, width))
    return Elementwise(results, operands, summed, reads_carry=reads, writes_carry=writes)


def sum_with_carry(instruction: Instruction) -> Elementwise:
    """addc and subc, with .cc or without."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("u32", "s32", "u64", "s64"))
    modifiers.has("cc")
    modifiers.end()
    return with_carry(instruction, type_name, reads=True)


def mul(instruction: Instruction) -> Elementwise:
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(INTEGERS)
    width = bits_of(type_name)
    part = modifiers.one_of(("lo", "hi", "wide"))
    modifiers.end()
    if part == "wide" and width == 64:
        raise modifiers.refuse("128 bits")
    return Elementwise(((2 * width if part == "wide" else width),), (width, width), product(type_name, part))


def mad(instruction: Instruction) -> Elementwise:
    """mad, mad.cc, madc: a part of a product plus c."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(INTEGERS)
    width = bits_of(type_name)
    part = modifiers.one_of(("lo", "hi", "wide"))
    multiply = product(type_name, part) if (part, width) != ("wide", 64) else None
    if multiply is None:
        raise modifiers.refuse("128 bits")
    total = 2 * width if part == "wide" else width
    reads, writes = instruction.opcode == "madc", modifiers.has("cc")
    if reads or writes:
        modifiers.end()
        add = with_carry(instruction, type_name, reads)
        return Elementwise(
            add.results,
            (width, *add.operands),
            lambda a, b, c, *carry: add.function(multiply(a, b), c, *carry),
            reads_carry=reads,
            writes_carry=writes,
        )
    if (type_name, part) == ("s32", "hi") and modifiers.has("sat"):
        modifiers.end()
        return Elementwise((32,), (32, 32, 32), lambda a, b, c: saturated(wide_s32(multiply(a, b)) + wide_s32(c)))
    modifiers.end()
    return Elementwise((total,), (width, width, total), lambda a, b, c: multiply(a, b) + c)


def product24(type_name: str, part: str) -> Function:
    """The lower or the upper 32 of the 48 bits of a product of 24-bit integers, as int64."""
    is_signed = type_name == "s32"
    shift = 0 if part == "lo" else 16

    def low24(bits: Any) -> Any:
        if is_signed:
            return (as_signed(bits << np.uint32(8)) >> np.int32(8)).astype(np.int64)
        return (bits & np.uint32(0xFFFFFF)).astype(np.int64)

    return lambda a, b: (low24(a) * low24(b)) >> np.int64(shift)


def mul24(instruction: Instruction) -> Elementwise:
    modifiers = Modifiers(instruction)
    multiply = product24(modifiers.type(("u32", "s32")), modifiers.one_of(("lo", "hi")))
    modifiers.end()
    return Elementwise((32,), (32, 32), lambda a, b: multiply(a, b).astype(np.uint32))


def mad24(instruction: Instruction) -> Elementwise:
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("u32", "s32"))
    part = modifiers.one_of(("lo", "hi"))
    multiply = product24(type_name, part)
    if (type_name, part) == ("s32", "hi") and modifiers.has("sat"):
        modifiers.end()
        return Elementwise(
            (32,), (32, 32, 32), lambda a, b, c: saturated(multiply(a, b).astype(np.int32) + wide_s32(c))
        )
    modifiers.end()
    return Elementwise((32,), (32, 32, 32), lambda a, b, c: multiply(a, b).astype(np.uint32) + c)


def sad(instruction: Instruction) -> Elementwise:
    """c + |a - b|."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(INTEGERS)
    modifiers.end()
    width, greatest, least = bits_of(type_name), of_type(type_name, higher), of_type(type_name, lower)
    return Elementwise((width,), (width,) * 3, lambda a, b, c: c + (greatest(a, b) - least(a, b)))


def division(instruction: Instruction) -> Elementwise:
    """div and rem."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(INTEGERS)
    modifiers.end()
    both, which = quotient_and_remainder(type_name.startswith("s")), int(instruction.opcode == "rem")
    width = bits_of(type_name)
    return Elementwise((width,), (width, width), lambda a, b: both(a, b)[which])


def sign(instruction: Instruction) -> Elementwise:
    """abs and neg. Of the most negative number both are itself."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("s16", "s32", "s64"))
    modifiers.end()
    width = bits_of(type_name)
    if instruction.opcode == "neg":
        return Elementwise((width,), (width,), np.negative)
    return Elementwise((width,), (width,), of_type(type_name, np.abs))


def extreme(instruction: Instruction) -> Elementwise:
    """min and max; .relu clamps signed results at zero."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type((*INTEGERS, *PAIRS))
    operation = lower if instruction.opcode == "min" else higher
    if type_name in ("s32", "s16x2") and modifiers.has("relu"):
        inner = operation

        def operation(a: Any, b: Any) -> Any:
            return np.maximum(inner(a, b), a.dtype.type(0))

    modifiers.end()
    width = bits_of(type_name)
    function = of_type(type_name, operation)
    return Elementwise((width,), (width, width), by_lanes(function, 16, 32) if type_name in PAIRS else function)


RESOLVERS = {
    "add": sum_,
    "sub": sum_,
    "addc": sum_with_carry,
    "subc": sum_with_carry,
    "mul": mul,
    "mad": mad,
    "madc": mad,
    "mul24": mul24,
    "mad24": mad24,
    "sad": sad,
    "div": division,
    "rem": division,
    "abs": sign,
    "neg": sign,
    "min": extreme,
    "max": extreme,
}

"""Logic, shifts and counts of bits. PTX ISA 9.7.1 and 9.7.8. Fields are in fields.py, prmt in permute.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import UNSIGNED, as_signed, as_unsigned, select, width_of
from simulators.gpu.ptx.module import Immediate, Instruction, Pair
from simulators.gpu.semantics import permute
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

Function = Callable[..., Any]
UNTYPED = ("b16", "b32", "b64")
LOGIC: dict[str, Function] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
NONE = np.uint32(0xFFFFFFFF)  # what bfind and fns answer when there is no such bit


def logic(instruction: Instruction) -> Elementwise:
    """and, or, xor of bits and of predicates."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type((*UNTYPED, "pred")))
    modifiers.end()
    return Elementwise((width,), (width, width), LOGIC[instruction.opcode])


def not_(instruction: Instruction) -> Elementwise:
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type((*UNTYPED, "pred")))
    modifiers.end()
    return Elementwise((width,), (width,), np.invert)


def cnot(instruction: Instruction) -> Elementwise:
    """1 for zero, 0 for everything else."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type(UNTYPED))
    modifiers.end()
    return Elementwise((width,), (width,), lambda a: (a == 0).astype(a.dtype))


def of_table(table: int, count: int) -> Function:
    """The bitwise function of `count` operands whose value for operand bits (b0, b1, ...) is bit b0b1... of a table.

    By the last operand x: f = f0 ^ (x & (f0 ^ f1)), where f0 and f1 are the functions of the others for x = 0 and 1.
    """
    if count == 0:
        return lambda: -table & 0xFFFFFFFF
    low = sum((table >> (2 * index) & 1) << index for index in range(1 << (count - 1)))
    high = sum((table >> (2 * index + 1) & 1) << index for index in range(1 << (count - 1)))
    if count == 1:
        zero, change = np.uint32(-low & 0xFFFFFFFF), np.uint32(-(low ^ high) & 0xFFFFFFFF)
        return lambda x: zero ^ (x & change)
    if low == high:
        same = of_table(low, count - 1)
        return lambda *operands: same(*operands[:-1])
    zero_of, change_of = of_table(low, count - 1), of_table(low ^ high, count - 1)
    return lambda *operands: zero_of(*operands[:-1]) ^ (operands[-1] & change_of(*operands[:-1]))


def lop3(instruction: Instruction) -> Elementwise:
    """lop3.b32 d, a, b, c, table; lop3.or.b32 d|p, a, b, c, table, q: p = (d != 0) or q."""
    modifiers = Modifiers(instruction)
    modifiers.type(("b32",))
    combine = modifiers.optional(("and", "or"))
    modifiers.end()
    table = instruction.operands[4]
    if not isinstance(table, Immediate):
        raise modifiers.refuse("its table is not an immediate")
    function = of_table(table.value & 0xFF, 3)
    if combine is None:
        return Elementwise((32,), (32, 32, 32, 32), lambda a, b, c, _: function(a, b, c))
    if not isinstance(instruction.operands[0], Pair):
        raise modifiers.refuse("d|p is missing")
    either: Function = np.logical_and if combine == "and" else np.logical_or

    def with_predicate(a: Any, b: Any, c: Any, _: Any, q: Any) -> tuple[Any, Any]:
        result = function(a, b, c)
        return result, either(result != 0, q)

    return Elementwise((32, 1), (32, 32, 32, 32, 1), with_predicate)


def amount(shift: Any, width: int) -> Any:
    """A shift of 32 bits, clamped to the width, in the type of the value: NumPy shifts by the whole width, too."""
    return np.minimum(shift, np.uint32(width)).astype(UNSIGNED[width])


def shift(instruction: Instruction) -> Elementwise:
    """shl, shr: amounts beyond the width clear, or fill with the sign."""
    modifiers = Modifiers(instruction)
    signed = ("s16", "s32", "s64")
    types = UNTYPED if instruction.opcode == "shl" else (*UNTYPED, "u16", "u32", "u64", *signed)
    type_name = modifiers.type(types)
    modifiers.end()
    width = bits_of(type_name)
    if instruction.opcode == "shl":
        return Elementwise((width,), (width, 32), lambda a, b: a << amount(b, width))
    if type_name in signed:
        return Elementwise((width,), (width, 32), lambda a, b: shifted_with_sign(a, amount(b, width)))
    return Elementwise((width,), (width, 32), lambda a, b: a >> amount(b, width))


def shifted_with_sign(bits: Any, by: Any) -> Any:
    return as_unsigned(as_signed(bits) >> as_signed(by))


def funnel_shift(instruction: Instruction) -> Elementwise:
    """shf.l, shf.r d, a, b, c: 32 bits out of b above a, shifted by c."""
    modifiers = Modifiers(instruction)
    modifiers.type(("b32",))
    is_left = modifiers.one_of(("l", "r")) == "l"
    wraps = modifiers.one_of(("wrap", "clamp")) == "wrap"
    modifiers.end()

    def shifted(a: Any, b: Any, c: Any) -> Any:
        by = (c & np.uint32(31) if wraps else np.minimum(c, np.uint32(32))).astype(np.uint64)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = (both << by) >> np.uint64(32) if is_left else both >> by
        return result.astype(np.uint32)

    return Elementwise((32,), (32, 32, 32), shifted)


def bit_length(bits: Any) -> Any:
    """Bits up to the highest one that is set, as uint32."""
    smeared, width, by = bits, width_of(bits), 1
    while by < width:
        smeared = smeared | (smeared >> smeared.dtype.type(by))
        by *= 2
    return np.bitwise_count(smeared).astype(np.uint32)


def bfind(instruction: Instruction) -> Elementwise:
    """The highest bit that is set, or of a negative number that is clear; .shiftamt: how far it is from the top."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("u32", "u64", "s32", "s64"))
    counts_from_top = modifiers.has("shiftamt")
    modifiers.end()
    width = bits_of(type_name)

    def found(a: Any) -> Any:
        if type_name.startswith("s"):
            a = a ^ shifted_with_sign(a, UNSIGNED[width](width - 1))
        position = bit_length(a) - np.uint32(1)
        return select(position == NONE, NONE, np.uint32(width - 1) - position) if counts_from_top else position

    return Elementwise((32,), (width,), found)


def reverse(instruction: Instruction) -> Elementwise:
    """brev."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type(("b32", "b64")))
    modifiers.end()

    def reversed_(a: Any) -> Any:
        word = UNSIGNED[width]
        by = 1
        while by < width:
            mask = word(((1 << width) - 1) // ((1 << by) + 1))  # `by` ones, `by` zeros, and so on
            a = ((a >> word(by)) & mask) | ((a & mask) << word(by))
            by *= 2
        return a

    return Elementwise((width,), (width,), reversed_)


def count(instruction: Instruction) -> Elementwise:
    """popc and clz."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type(("b32", "b64")))
    modifiers.end()
    if instruction.opcode == "popc":
        return Elementwise((32,), (width,), lambda a: np.bitwise_count(a).astype(np.uint32))
    return Elementwise((32,), (width,), lambda a: np.uint32(width) - bit_length(a))


def fns(instruction: Instruction) -> Elementwise:
    """fns d, mask, base, offset: the offset-th set bit from base on, downward if negative. 0: base itself, if set."""
    modifiers = Modifiers(instruction)
    modifiers.type(("b32",))
    modifiers.end()

    def found(mask: Any, base: Any, offset: Any) -> Any:
        mask, base, offset = np.broadcast_arrays(mask, base, offset)
        steps = as_signed(np.array(offset)).astype(np.int64)
        start = base.astype(np.int64)
        wanted = np.where(steps == 0, 1, np.abs(steps))
        reach = np.where(steps == 0, 1, 32)
        way = np.where(steps < 0, -1, 1)
        seen, result = np.zeros(mask.shape, np.int64), np.full(mask.shape, NONE)
        for distance in range(32):
            position = start + way * distance
            is_set = (position >= 0) & (position < 32) & (distance < reach)
            is_set &= ((mask >> (position & 31).astype(np.uint32)) & np.uint32(1)) == 1
            seen += is_set
            result = np.where(is_set & (seen == wanted), position.astype(np.uint32), result)
        return result

    return Elementwise((32,), (32, 32, 32), found)


RESOLVERS = {
    **dict.fromkeys(LOGIC, logic),
    "not": not_,
    "cnot": cnot,
    "lop3": lop3,
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "bfind": bfind,
    "brev": reverse,
    "clz": count,
    "popc": count,
    "fns": fns,
    "prmt": permute.prmt,
}

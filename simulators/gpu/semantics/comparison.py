"""setp, set, testp: comparisons, and classes of floating-point numbers. PTX ISA 9.7.3 and 9.7.6 to 9.7.8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import UNSIGNED, as_float, as_signed, split
from simulators.gpu.numbers.half import TO_FLOAT32
from simulators.gpu.numbers.rounding import flush
from simulators.gpu.ptx.module import Instruction, Pair
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.floating import flush_half
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

Function = Callable[..., Any]
ORDERED: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
# Of floats: each is true of NaN, being the negation of what is false of it. `ne` is false of NaN, so it stands below.
UNORDERED = {"neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
COMPARISONS = (*ORDERED, *UNSIGNED_NAMES, *UNORDERED, "equ", "num", "nan")
COMBINE: dict[str, Function] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
INTEGERS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def float_comparison(name: str) -> Function:
    """A comparison of float arrays to bools."""
    if name in UNORDERED:
        ordered = ORDERED[UNORDERED[name]]
        return lambda a, b: ~ordered(a, b)
    special: dict[str, Function] = {
        "ne": lambda a, b: (a < b) | (a > b),
        "equ": lambda a, b: ~((a < b) | (a > b)),
        "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
        "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    }
    return special[name] if name in special else ORDERED[name]


def integer_comparison(modifiers: Modifiers, name: str, type_name: str) -> Function:
    """A comparison of bits of an integer type to bools."""
    if name in UNSIGNED_NAMES:
        if type_name.startswith("s"):
            raise modifiers.refuse(f".{name} of signed integers")
        name = UNSIGNED_NAMES[name]
    if name not in ORDERED:
        raise modifiers.refuse(f".{name} of integers")
    compare = ORDERED[name]
    if type_name.startswith("s"):
        return lambda a, b: compare(as_signed(a), as_signed(b))
    return compare


def values_of(type_name: str, flushes: bool) -> Function:
    """Bits of a floating-point type to float arrays that compare alike; pairs get a last axis of two."""
    name, _, lanes = type_name.partition("x")

    def values(bits: Any) -> Any:
        if lanes:
            bits = split(bits, 16)
        if name in TO_FLOAT32:
            return TO_FLOAT32[name](flush_half(bits) if flushes else bits)
        return as_float(flush(bits) if flushes else bits)

    return values


def comparison(modifiers: Modifiers, type_name: str, name: str) -> Function:
    """Bits of two operands to bools, with a last axis of two for pairs."""
    if type_name in INTEGERS:
        return integer_comparison(modifiers, name, type_name)
    if name in UNSIGNED_NAMES:
        raise modifiers.refuse(f".{name} of floats")
    flushes = type_name in ("f32", "f16", "f16x2") and modifiers.has("ftz")
    compare, values = float_comparison(name), values_of(type_name, flushes)
    return lambda a, b: compare(values(a), values(b))


def setp(instruction: Instruction) -> Elementwise:
    """setp.lt.and.f32 p|q, a, b, c: p = (a < b) and c, q = !(a < b) and c. Of pairs p and q are the two lanes."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type((*INTEGERS, *FLOATS))
    compare = comparison(modifiers, type_name, modifiers.one_of(COMPARISONS))
    combine = modifiers.optional(COMBINE)
    modifiers.end()
    is_pair, is_packed = isinstance(instruction.operands[0], Pair), type_name.endswith("x2")
    if is_packed and not is_pair:
        raise modifiers.refuse("pairs are compared to p|q")

    def predicates(a: Any, b: Any, *third: Any) -> Any:
        first = compare(a, b)
        if is_packed:
            outcomes: tuple[Any, ...] = (first[..., 0].copy(), first[..., 1].copy())
        else:
            outcomes = (first, ~first) if is_pair else (first,)
        if combine is not None:
            outcomes = tuple(COMBINE[combine](outcome, third[0]) for outcome in outcomes)
        return outcomes if is_pair else outcomes[0]

    width = bits_of(type_name)
    operands = (width, width) if combine is None else (width, width, 1)
    return Elementwise((1, 1) if is_pair else (1,), operands, predicates)


TRUE = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "u16": 0xFFFF, "s16": 0xFFFF, "f16": 0x3C00}
TRUE["bf16"] = 0x3F80


def set_(instruction: Instruction) -> Elementwise:
    """set.lt.u32.f32 d, a, b: all ones, or 1.0 of a floating-point type, where true. Pairs give pairs."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type((*INTEGERS, *FLOATS))
    is_packed = type_name.endswith("x2")
    result_type = modifiers.type((type_name,) if is_packed else TRUE)
    compare = comparison(modifiers, type_name, modifiers.one_of(COMPARISONS))
    combine = modifiers.optional(COMBINE)
    modifiers.end()
    result_width, width = bits_of(result_type), bits_of(type_name)
    true = TRUE[result_type.partition("x")[0]]

    def values(a: Any, b: Any, *third: Any) -> Any:
        outcome = compare(a, b)
        if combine is not None:
            outcome = COMBINE[combine](outcome, third[0][..., None] if is_packed else third[0])
        if is_packed:
            word = np.uint32
            return outcome[..., 0] * word(true) | outcome[..., 1] * word(true << 16)
        return outcome * UNSIGNED[result_width](true)

    return Elementwise((result_width,), (width, width) if combine is None else (width, width, 1), values)


def testp(instruction: Instruction) -> Elementwise:
    """testp.finite.f32 p, a. Zero is normal, an H200 says."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("f32", "f64"))
    least = 2.0**-126 if type_name == "f32" else 2.0**-1022
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= least) | (a == 0)),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < least),
    }
    test = tests[modifiers.one_of(tests)]
    modifiers.end()
    return Elementwise((1,), (bits_of(type_name),), lambda a: test(as_float(a)))


RESOLVERS = {"setp": setp, "set": set_, "testp": testp}

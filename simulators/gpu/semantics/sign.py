"""Signs and order of floating-point numbers: abs, neg, copysign, min, max. PTX ISA 9.7.3 and 9.7.4."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.gpu.numbers import nan, rounding
from simulators.gpu.numbers.arrays import UNSIGNED, as_float, as_unsigned, by_lanes, select
from simulators.gpu.numbers.half import OF_FLOAT32, TO_FLOAT32
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.floating import HALVES, Function, flush_half
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


def sign(instruction: Instruction) -> Elementwise:
    """abs and neg: the sign's bit, but not of a NaN."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("f32", "f64", *HALVES))
    name, _, lanes = type_name.partition("x")
    flushes = name in ("f32", "f16") and modifiers.has("ftz")
    modifiers.end()
    bits, width = bits_of(name), bits_of(type_name)
    top = UNSIGNED[bits](1 << (bits - 1))
    flush = rounding.flush if name == "f32" else flush_half
    infinity = UNSIGNED[bits](INFINITY[name])

    def on_bits(a: Any) -> Any:
        if flushes:
            a = flush(a)
        result = a ^ top if instruction.opcode == "neg" else a & ~top
        is_nan = (a & ~top) > infinity
        if is_nan.any():
            result = select(is_nan, a | nan.F64_QUIET if name == "f64" else top - top.dtype.type(1), result)
        return result

    return Elementwise((width,), (width,), by_lanes(on_bits, bits, width) if lanes else on_bits)


def extreme_of_two(is_max: bool, keeps_nan: bool) -> Function:
    """min or max of float32 or float64: -0 is less than +0; a number wins over a NaN unless .NaN."""
    pick: Function = (np.maximum if keeps_nan else np.fmax) if is_max else (np.minimum if keeps_nan else np.fmin)

    def on_values(a: Any, b: Any) -> Any:
        result = pick(a, b)
        is_zero = result == 0
        if is_zero.any():
            both = (as_unsigned(a) & as_unsigned(b)) if is_max else (as_unsigned(a) | as_unsigned(b))
            result = np.where(is_zero & (a == b), as_float(both), result)
        return result

    return on_values


def extreme(instruction: Instruction) -> Elementwise:
    """min and max: two operands, or three of f32; .NaN, .xorsign.abs, .abs, .ftz."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("f32", "f64", *HALVES))
    name, _, lanes = type_name.partition("x")
    flushes = name in ("f32", "f16") and modifiers.has("ftz")
    keeps_nan = name != "f64" and modifiers.has("NaN")
    xors = name != "f64" and modifiers.has("xorsign")
    is_absolute = name != "f64" and modifiers.has("abs")
    modifiers.end()
    count = len(instruction.operands) - 1
    if count not in (2, 3) or (count == 3 and (name != "f32" or xors)) or (xors and not is_absolute):
        raise modifiers.refuse("its operands")
    bits, width = bits_of(name), bits_of(type_name)
    pick = extreme_of_two(instruction.opcode == "max", keeps_nan)
    top = UNSIGNED[bits](1 << (bits - 1))
    flush = rounding.flush if name == "f32" else flush_half

    def on_bits(*operands: Any) -> Any:
        if flushes:
            operands = tuple(flush(operand) for operand in operands)
        parts = tuple(operand & ~top for operand in operands) if is_absolute else operands
        if bits == 16:
            values = tuple(TO_FLOAT32[name](part) for part in parts)
            result = OF_FLOAT32[name](pick(*values))
        else:
            floats = tuple(as_float(part) for part in parts)
            best = pick(floats[0], floats[1])
            best = best if count == 2 else pick(best, floats[2])
            result = nan.passed_on(best, operands[::-1]) if bits == 64 else nan.canonical(best)
        if xors:
            sign = (operands[0] ^ operands[1]) & top
            result = select(result == top - top.dtype.type(1), result, result | sign)
        return result

    return Elementwise((width,), (width,) * count, by_lanes(on_bits, bits, width) if lanes else on_bits)


def copysign(instruction: Instruction) -> Elementwise:
    """copysign d, a, b: the magnitude of b under the sign of a."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type(("f32", "f64")))
    modifiers.end()
    top = rounding.TOP[width]
    return Elementwise((width,), (width, width), lambda a, b: (a & top) | (b & ~top))


RESOLVERS = {"abs": sign, "neg": sign, "min": extreme, "max": extreme, "copysign": copysign}

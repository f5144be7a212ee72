"""Floating-point arithmetic: add, sub, mul, fma, mad, div, rcp, sqrt. PTX ISA 9.7.3 to 9.7.5.

Every format is computed by float32 or float64 and rounded once: f16 and bf16 sums and products are exact or innocuous
in float32, which has more than twice their bits and two; an fma of them is rounded to odd in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulators.gpu.numbers import exact, nan, rounding
from simulators.gpu.numbers.arrays import as_float, as_unsigned, by_lanes, select
from simulators.gpu.numbers.formats import FORMATS, clamp_negative
from simulators.gpu.numbers.half import OF_FLOAT32, TO_FLOAT32, of_odd
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

Function = Callable[..., Any]
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
LEAST_NORMAL = np.uint32(0x00800000)  # 2^-126
SCALE, SCALED_LEAST_NORMAL = np.float32(2.0**64), np.float32(2.0**-62)
F16_TINY = 2.0**-14 * (1 - 2.0**-12)  # what rounds to less than the least normal f16, had it eleven bits
ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3}


def with_sub(operation: str, add: Function) -> Function:
    """Directed, a - b is a + -b."""
    return (lambda a, b, mode: a - b if mode == "rn" else add(a, -b, mode)) if operation == "sub" else add


def float32_function(operation: str) -> Function:
    """float32 operands and a mode to float32."""
    if operation in ("add", "sub"):
        return with_sub(operation, rounding.add_float32)
    return rounding.mul_float32 if operation == "mul" else rounding.fma_float32


def float64_function(operation: str) -> Function:
    if operation in ("add", "sub"):
        return with_sub(operation, rounding.add_float64)
    return exact.mul_float64 if operation == "mul" else exact.fma_float64


def on_float32(
    function: Function, flushes: bool = False, scaled: Function | None = None, saturates: bool = False
) -> Function:
    """A function of float32, on bits, with .ftz and .sat.

    A result is flushed if it is too small when rounded as if exponents had no end, so one that was rounded up to the
    least normal number may be flushed, too: `scaled` tells, which gives such results times 2^64. Sums need none.
    """

    def on_bits(*operands: Any) -> Any:
        if flushes:
            operands = tuple(rounding.flush(bits) for bits in operands)
        values = tuple(as_float(bits) for bits in operands)
        bits = nan.canonical(function(*values))
        if flushes:
            bits = rounding.flush(bits)
            is_least = (bits & ~rounding.TOP[32]) == LEAST_NORMAL
            if scaled is not None and is_least.any():
                is_tiny = is_least & (np.abs(scaled(*values)) < SCALED_LEAST_NORMAL)
                bits = select(is_tiny, bits & rounding.TOP[32], bits)
        return rounding.saturate(bits) if saturates else bits

    return on_bits


def scaled_up(function: Function, operation: str) -> Function | None:
    """A function's result times 2^64 by scaling operands: the smaller one of two factors, and what is added."""
    places = SCALED_PLACES.get(operation)
    if places is None:
        return None

    def scaled(*values: Any) -> Any:
        terms = list(values)
        first, *second = places[:2]
        is_first = np.abs(terms[first]) <= np.abs(terms[second[0]]) if second else np.True_
        terms[first] = np.where(is_first, terms[first] * SCALE, terms[first])
        if second:
            terms[second[0]] = np.where(is_first, terms[second[0]], terms[second[0]] * SCALE)
        for place in places[2:]:
            terms[place] = terms[place] * SCALE
        return function(*terms)

    return scaled


SCALED_PLACES: dict[str, tuple[int, ...]] = {"mul": (0, 1), "fma": (0, 1, 2), "mad": (0, 1, 2), "div": (0,)}


def on_float64(function: Function, rank: Sequence[int]) -> Function:
    """A function of float64, on bits."""

    def on_bits(*operands: Any) -> Any:
        return nan.passed_on(function(*(as_float(bits) for bits in operands)), [operands[place] for place in rank])

    return on_bits


def flush_half(bits: Any, name: str = "f16") -> Any:
    """f16 or bf16 denormals to zeros of their sign."""
    is_denormal = (bits & np.uint16(0x7C00 if name == "f16" else 0x7F80)) == 0
    return select(is_denormal, bits & np.uint16(0x8000), bits)


def on_halves(name: str, operation: str, flushes: bool, saturates: bool, clamps: bool) -> Function:
    """add, sub, mul or fma of f16 or bf16, to nearest."""
    widen, narrow, function = TO_FLOAT32[name], OF_FLOAT32[name], float32_function(operation)

    def on_bits(*operands: Any) -> Any:
        if flushes:
            operands = tuple(flush_half(bits) for bits in operands)
        values = tuple(widen(bits) for bits in operands)
        if operation == "fma":
            value = rounding.fma_odd(*values)
            result = of_odd(value, name)
        else:
            value = function(*values, "rn")
            result = narrow(value)
        if flushes:  # as for float32; the value is exact, or rounded to odd
            result = select(np.abs(value) < F16_TINY, result & np.uint16(0x8000), result)
        if saturates:
            result = narrow(as_float(rounding.saturate(as_unsigned(widen(result)))))
        if clamps:
            result = clamp_negative(result, FORMATS[name])
        return result

    return on_bits


def with_oob(function: Function) -> Function:
    """fma.oob: zero where a factor is the NaN that stands for out of bounds."""

    def on_bits(a: Any, b: Any, c: Any) -> Any:
        magnitude = np.uint16(0x7FFF)
        is_outside = ((a & magnitude) == nan.OOB) | ((b & magnitude) == nan.OOB)
        return select(is_outside, np.uint16(0), function(a, b, c))

    return on_bits


def arithmetic(instruction: Instruction) -> Elementwise:
    """add, sub, mul, fma and mad of every floating-point type."""
    modifiers = Modifiers(instruction)
    operation = instruction.opcode
    count = ARITHMETIC[operation]
    type_name = modifiers.type(("f32", "f64", "f32x2", *HALVES))
    if type_name in HALVES and modifiers.left and modifiers.left[-1] == "f32":
        return mixed(modifiers, type_name)
    mode = modifiers.one_of(rounding.MODES, "rn")
    name, _, lanes = type_name.partition("x")
    flushes = name in ("f32", "f16") and modifiers.has("ftz")
    saturates = type_name in ("f32", "f16", "f16x2") and modifiers.has("sat")
    clamps = operation == "fma" and type_name in HALVES and modifiers.has("relu")
    has_oob = operation == "fma" and type_name in HALVES and modifiers.has("oob")
    modifiers.end()
    if type_name in HALVES:
        if mode != "rn" or operation == "mad":
            raise modifiers.refuse("of 16-bit floats only .rn")
        function = on_halves(name, operation, flushes, saturates, clamps)
        if has_oob:
            function = with_oob(function)
    elif name == "f64":
        of_float64s = float64_function(operation)
        rank = nan.FMA_RANK if count == 3 else nan.SUM_RANK
        function = on_float64(lambda *values: of_float64s(*values, mode), rank)
    else:
        of_float32s = float32_function(operation)

        def of_values(*values: Any) -> Any:
            return of_float32s(*values, mode)

        function = on_float32(of_values, flushes, scaled_up(of_values, operation), saturates)
    width = bits_of(type_name)
    if lanes:
        function = by_lanes(function, bits_of(name), width)
    return Elementwise((width,), (width,) * count, function)


def mixed(modifiers: Modifiers, narrow_type: str) -> Elementwise:
    """`fma.rn.f32.bf16 d, a, b, c`: a and b of 16 bits, c and d f32. `add.rn.f32.f16 d, a, c` likewise."""
    operation = modifiers.instruction.opcode
    modifiers.left.pop()
    mode = modifiers.one_of(rounding.MODES, "rn")
    saturates = modifiers.has("sat")
    modifiers.end()
    if narrow_type not in TO_FLOAT32 or operation not in ("add", "sub", "fma"):
        raise modifiers.refuse("mixed precision")
    widen, of_values = TO_FLOAT32[narrow_type], float32_function(operation)
    narrow_count = ARITHMETIC[operation] - 1

    def on_bits(*operands: Any) -> Any:
        values = (*(widen(bits) for bits in operands[:narrow_count]), as_float(operands[-1]))
        result = of_values(*values, mode)
        return rounding.saturate(as_unsigned(result)) if saturates else nan.canonical(result)

    return Elementwise((32,), (16,) * narrow_count + (32,), on_bits)


def quotient_f32(a: Any, b: Any, mode: str) -> Any:
    """A quotient of two f32 is never so near to a tie that float64 would not tell them apart."""
    return a / b if mode == "rn" else rounding.float32_of(np.divide(a, b, dtype=np.float64), mode)


def root_f32(a: Any, mode: str) -> Any:
    """As for quotients."""
    return np.sqrt(a) if mode == "rn" else rounding.float32_of(np.sqrt(a.astype(np.float64)), mode)


def division(instruction: Instruction) -> Elementwise:
    """div, rcp and sqrt as IEEE 754 has them: with one of .rn, .rz, .rm, .rp."""
    modifiers = Modifiers(instruction)
    type_name = modifiers.type(("f32", "f64"))
    mode = modifiers.one_of(rounding.MODES)
    flushes = type_name == "f32" and modifiers.has("ftz")
    modifiers.end()
    opcode, width = instruction.opcode, bits_of(type_name)
    root: Function = root_f32 if type_name == "f32" else exact.sqrt_float64
    divide: Function = quotient_f32 if type_name == "f32" else exact.div_float64
    functions: dict[str, Function] = {
        "sqrt": lambda a: root(a, mode),
        "rcp": lambda a: divide(a.dtype.type(1), a, mode),
        "div": lambda a, b: divide(a, b, mode),
    }
    of_values = functions[opcode]
    operands = (width, width) if opcode == "div" else (width,)
    if type_name == "f64":
        function = on_float64(of_values, nan.QUOTIENT_RANK if opcode == "div" else nan.ONLY)
    else:
        function = on_float32(of_values, flushes, scaled_up(of_values, opcode))
    return Elementwise((width,), operands, function)


RESOLVERS = {**dict.fromkeys(ARITHMETIC, arithmetic), **dict.fromkeys(("div", "rcp", "sqrt"), division)}

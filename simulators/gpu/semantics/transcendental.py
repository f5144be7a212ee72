"""Approximate functions: rcp, sqrt, rsqrt, div, sin, cos, lg2, ex2, tanh with .approx, and div.full.

PTX bounds their error and leaves the last bits open. Here they are computed in float64 and rounded once, which lies
within every bound; what PTX says of special values is kept to the letter. Those of 16 bits are cut off from what f32
gives, as on an H200, whose answers they nearly all are. PTX ISA 9.7.3, 9.7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import as_float, as_unsigned, by_lanes, in_chunks
from simulators.gpu.numbers.half import TO_FLOAT32, of_float64
from simulators.gpu.numbers.nan import F64_APPROXIMATE, canonical
from simulators.gpu.numbers.rounding import float32_of, flush
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.floating import flush_half
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

Function = Callable[..., Any]
UPPER = np.uint64(0xFFFFFFFF00000000)
LEAST_F32, LEAST_F64 = 2.0**-126, 2.0**-1022
TANH_IS_OPERAND, TANH_IS_ONE = 0.00392, 8.0  # below, from there on
EX2_IS_ONE = 2.0**-23  # below, of 16-bit operands
TURN = np.float64(np.float32(0.15915494))  # 1 / 2 pi


def turns(angle: Any) -> Any:
    """The part of a turn that an angle is, from -1/2 to 1/2: the chip multiplies in f32, and flushes denormals."""
    turn = float32_of(angle * TURN, "rz").astype(np.float64)
    rest = np.where(np.abs(turn) < LEAST_F32, 0.0, turn - np.rint(turn))
    return np.where(rest == 0, np.copysign(0.0, turn), rest)


def sine_of_turns(turn: Any) -> Any:
    """sin(2 pi turn), exact at quarters. A turn of zero keeps its sign."""
    quarter = np.rint(turn * 4)
    rest = np.where(quarter == 0, turn, turn - quarter / 4) * (2 * np.pi)
    odd = np.mod(quarter, 2) == 1
    value = np.where(odd, np.cos(rest), np.sin(rest))
    return np.where(np.mod(quarter, 4) >= 2, 0.0 - value, value)


def tanh(a: Any) -> Any:
    """An H200 gives small operands back, and 1 for large ones."""
    value = np.where(np.abs(a) < TANH_IS_OPERAND, a, np.tanh(a))
    return np.where(np.abs(a) >= TANH_IS_ONE, np.copysign(1.0, a), value)


FUNCTIONS: dict[str, Function] = {
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "sin": lambda a: sine_of_turns(turns(a)),
    "cos": lambda a: sine_of_turns(np.abs(turns(a)) + 0.25),
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": tanh,
}
OF_HALVES: dict[str, Function] = {"ex2": lambda a: np.exp2(np.where(np.abs(a) < EX2_IS_ONE, 0.0, a)), "tanh": tanh}


def on_f32(function: Function, flushes: bool) -> Function:
    """A function of float64 values on bits of f32."""

    def on_values(*values: Any) -> Any:
        return function(*(value.astype(np.float64) for value in values)).astype(np.float32)

    of_values = in_chunks(on_values, np.float32)

    def on_bits(*operands: Any) -> Any:
        if flushes:
            operands = tuple(flush(bits) for bits in operands)
        bits = canonical(of_values(*(as_float(bits) for bits in operands)))
        return flush(bits) if flushes else bits

    return on_bits


def on_half(function: Function, name: str, flushes: bool) -> Function:
    """A function of float64 values on bits of f16 or bf16: as in f32, and cut off. What is too large is infinity."""

    def on_bits(a: Any) -> Any:
        if flushes:
            a = flush_half(a, name)
        wide = function(TO_FLOAT32[name](a).astype(np.float64)).astype(np.float32).astype(np.float64)
        result = of_float64(np.where(wide >= 2.0**16, np.inf, wide) if name == "f16" else wide, name, "rz")
        return flush_half(result, name) if flushes else result

    return on_bits


def on_f64(function: Function) -> Function:
    """rcp and rsqrt of f64 see and give only the upper 32 bits, and flush denormals."""

    def on_bits(a: Any) -> Any:
        value = as_float(a & UPPER)
        value = np.where(np.abs(value) < LEAST_F64, value * 0.0, value)
        result = function(value)
        result = np.where(np.abs(result) < LEAST_F64, result * 0.0, result)
        return np.where(np.isnan(result), F64_APPROXIMATE, as_unsigned(result) & UPPER)

    return on_bits


def unary(instruction: Instruction) -> Elementwise:
    """One operand, .approx, .ftz or not."""
    modifiers = Modifiers(instruction)
    opcode = instruction.opcode
    type_name = modifiers.type(("f32", "f64", "f16", "f16x2", "bf16", "bf16x2"))
    name, _, lanes = type_name.partition("x")
    if not modifiers.has("approx"):
        raise modifiers.refuse(".approx is missing")
    flushes = modifiers.has("ftz")
    modifiers.end()
    width = bits_of(type_name)
    if name == "f64":
        if opcode not in ("rcp", "rsqrt") or not (flushes or opcode == "rsqrt"):
            raise modifiers.refuse("of f64")
        return Elementwise((64,), (64,), on_f64(FUNCTIONS[opcode]), is_exact=False)
    if name != "f32":
        if opcode not in OF_HALVES:
            raise modifiers.refuse("of 16-bit floats")
        function = on_half(OF_HALVES[opcode], name, flushes)
        return Elementwise((width,), (width,), by_lanes(function, 16, 32) if lanes else function, is_exact=False)
    return Elementwise((32,), (32,), on_f32(FUNCTIONS[opcode], flushes), is_exact=False)


def quotient(a: Any, b: Any) -> Any:
    """div.full."""
    return a / b


def quotient_by_reciprocal(a: Any, b: Any) -> Any:
    """div.approx is a * (1 / b): where |b| is above 2^126 the reciprocal is lost, and the result is 0 or NaN."""
    is_lost = (np.abs(b) > 2.0**126) & np.isfinite(b)
    return np.where(is_lost, a * np.copysign(0.0, b), a / b)


def div(instruction: Instruction) -> Elementwise:
    modifiers = Modifiers(instruction)
    modifiers.type(("f32",))
    function = quotient_by_reciprocal if modifiers.one_of(("approx", "full")) == "approx" else quotient
    flushes = modifiers.has("ftz")
    modifiers.end()
    return Elementwise((32,), (32, 32), on_f32(function, flushes), is_exact=False)


RESOLVERS = {**dict.fromkeys(FUNCTIONS, unary), "div": div}

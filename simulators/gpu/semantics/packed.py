"""cvt to and from pairs of narrow floats, and cvt.pack. PTX ISA 9.7.9.21 and 9.7.9.22.

Of two sources the first becomes the upper half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import as_float, as_signed, select, split
from simulators.gpu.numbers.formats import FORMATS, FloatFormat, clamp_negative, decoded, encode
from simulators.gpu.numbers.half import (
    TO_FLOAT32,
    bf16_of_float32,
    bf16_rounded,
    f16_of_float32,
    of_float64,
)
from simulators.gpu.numbers.nan import HALF
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

Function = Callable[..., Any]
HALVES = ("f16x2", "bf16x2")
NARROW = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2")
PAIRS = (*HALVES, *NARROW, "ue8m0x2")


def is_packed(instruction: Instruction) -> bool:
    return any(name in PAIRS for name in instruction.modifiers)


def joined(high: Any, low: Any, width: int) -> Any:
    """Two codes to one register's value; its array type is that of its bits."""
    word = np.uint32 if width == 32 else np.uint16
    return (high.astype(word) << word(width // 2)) | low.astype(word)


def cvt(modifiers: Modifiers) -> Elementwise:
    """Reads the types and finds the conversion."""
    source = modifiers.type((*PAIRS, "f32"))
    destination = modifiers.type(PAIRS)
    if destination == "ue8m0x2":
        return to_ue8m0(modifiers, source)
    if source == "ue8m0x2":
        return from_ue8m0(modifiers, destination)
    if destination in HALVES and source == "f32":
        return to_halves(modifiers, destination[:-2])
    if destination in NARROW and source in ("f32", *HALVES):
        return to_narrow(modifiers, source, destination)
    if destination in HALVES and source in NARROW:
        return from_narrow(modifiers, source[:-2], destination)
    raise modifiers.refuse("these types")


def to_halves(modifiers: Modifiers, name: str) -> Elementwise:
    """cvt.rn.bf16x2.f32 d, a, b."""
    mode = modifiers.one_of(("rn", "rz"))
    clamps, is_finite = modifiers.has("relu"), modifiers.has("satfinite")
    modifiers.end()
    is_plain = mode == "rn" and not is_finite

    def one(values: Any) -> Any:
        if not is_plain:
            codes = of_float64(values.astype(np.float64), name, mode, is_finite)
        else:
            codes = (bf16_of_float32 if name == "bf16" else f16_of_float32)(values)
        return clamp_negative(codes, FORMATS[name]) if clamps else codes

    def bf16_pair(a: Any, b: Any) -> Any:
        upper = bf16_rounded(as_float(a)) & np.uint32(0xFFFF0000)
        return upper | (bf16_rounded(as_float(b)) >> np.uint32(16))

    if is_plain and not clamps and name == "bf16":
        return Elementwise((32,), (32, 32), bf16_pair)
    return Elementwise((32,), (32, 32), lambda a, b: joined(one(as_float(a)), one(as_float(b)), 32))


def to_narrow(modifiers: Modifiers, source: str, destination: str) -> Elementwise:
    """cvt.rn.satfinite.e4m3x2.f32 d, a, b; from a pair of halves: of one register."""
    form, width = FORMATS[destination[:-2]], bits_of(destination)
    mode = modifiers.one_of(("rn",))
    if not modifiers.has("satfinite"):
        raise modifiers.refuse(".satfinite is missing")
    clamps = modifiers.has("relu")
    modifiers.end()

    def one(values: Any) -> Any:
        codes = encode(values.astype(np.float64), form, mode, is_finite=True)
        return clamp_negative(codes, form) if clamps else codes

    if source == "f32":
        return Elementwise((width,), (32, 32), lambda a, b: joined(one(as_float(a)), one(as_float(b)), width))
    return Elementwise((width,), (32,), on_lanes(TO_FLOAT32[source[:-2]], one, width))


def on_lanes(widen: Function, one: Function, width: int) -> Function:
    """One register of two 16-bit floats to two codes."""

    def converted(bits: Any) -> Any:
        codes = one(widen(split(bits, 16)))
        return joined(codes[..., 1], codes[..., 0], width)

    return converted


def from_narrow(modifiers: Modifiers, source: str, destination: str) -> Elementwise:
    """cvt.rn.f16x2.e4m3x2 d, a: every code has an exact value."""
    form, name = FORMATS[source], destination[:-2]
    modifiers.one_of(("rn",))
    clamps = modifiers.has("relu")
    modifiers.end()
    codes = of_float64(decoded(form).astype(np.float64), name, "rn")
    table = clamp_negative(codes, FORMATS[name]) if clamps else codes
    width = bits_of(f"{source}x2")
    return Elementwise((32,), (width,), lambda bits: looked_up(table, form, bits, width))


def looked_up(table: Any, form: FloatFormat, bits: Any, width: int) -> Any:
    """Two codes of a register to two 16-bit floats. Formats of six bits leave the upper two of a byte alone."""
    mask = np.uint16((1 << form.bits) - 1)
    return joined(table[(bits >> np.uint16(width // 2)) & mask], table[bits & mask], 32)


def ue8m0(mode: str, is_finite: bool) -> Function:
    """Magnitudes of float32 to biased exponents. Up only above 2^-127, which is the code 0. NaN is 255."""

    def one(values: Any) -> Any:
        magnitude = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
        code = magnitude >> np.uint32(23)
        if mode == "rp":
            is_between = (magnitude & np.uint32(0x7FFFFF)) != 0
            code = code + (is_between & (magnitude > np.uint32(0x400000)) & (magnitude < np.uint32(0x7F800000)))
        if is_finite:
            code = select((code == 255) & (magnitude <= np.uint32(0x7F800000)), np.uint32(254), code.astype(np.uint32))
        return code

    return one


def to_ue8m0(modifiers: Modifiers, source: str) -> Elementwise:
    """cvt.rp.satfinite.ue8m0x2.f32 d, a, b; from a bf16 pair: of one register."""
    one = ue8m0(modifiers.one_of(("rz", "rp")), modifiers.has("satfinite"))
    modifiers.end()
    if source == "f32":
        return Elementwise((16,), (32, 32), lambda a, b: joined(one(as_float(a)), one(as_float(b)), 16))
    if source != "bf16x2":
        raise modifiers.refuse("these types")
    return Elementwise((16,), (32,), on_lanes(TO_FLOAT32["bf16"], one, 16))


def from_ue8m0(modifiers: Modifiers, destination: str) -> Elementwise:
    """cvt.rn.bf16x2.ue8m0x2 d, a: powers of two, the least of them a denormal."""
    modifiers.one_of(("rn",))
    modifiers.end()
    if destination != "bf16x2":
        raise modifiers.refuse("these types")
    table = np.arange(256, dtype=np.uint16) << np.uint16(7)
    table[0], table[255] = 0x40, HALF
    byte = np.uint16(0xFF)
    return Elementwise((32,), (16,), lambda bits: joined(table[bits >> np.uint16(8)], table[bits & byte], 32))


PACKED = {"u16": 16, "s16": 16, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}


def cvt_pack(instruction: Instruction) -> Elementwise:
    """cvt.pack.sat.u8.s32.b32 d, a, b, c: a and b clamped to two fields, below the lowest fields of c."""
    modifiers = Modifiers(instruction)
    modifiers.has("pack")
    has_rest = modifiers.left[-1] == "b32"
    if has_rest:
        modifiers.type(("b32",))
    modifiers.type(("s32",))
    name = modifiers.type(PACKED)
    if not modifiers.has("sat") or has_rest != (PACKED[name] < 16):
        raise modifiers.refuse("its form")
    modifiers.end()
    bits = PACKED[name]
    least, greatest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name[0] == "s" else (0, (1 << bits) - 1)
    word, mask = np.uint32, np.uint32((1 << bits) - 1)

    def field(value: Any) -> Any:
        clamped = np.minimum(np.maximum(as_signed(value), np.int32(least)), np.int32(greatest))
        return clamped.view(word) & mask

    def packed(a: Any, b: Any, *c: Any) -> Any:
        result = (field(a) << word(bits)) | field(b)
        return result | (c[0] << word(2 * bits)) if c else result

    return Elementwise((32,), (32, 32, 32) if has_rest else (32, 32), packed)

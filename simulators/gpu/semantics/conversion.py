"""cvt between integers and floating-point numbers of one element. PTX ISA 9.7.9.21.

Pairs of narrow floats and cvt.pack are in packed.py. A destination register that is wider than the type takes the sign
of a signed integer and zeros above everything else; it is done here, so the width of a result is its register's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers import nan, rounding
from simulators.gpu.numbers.arrays import SIGNED, UNSIGNED, as_float, as_signed, as_unsigned, select
from simulators.gpu.numbers.formats import FORMATS, clamp_negative, encode
from simulators.gpu.numbers.half import F16_INFINITY, OF_FLOAT32, TO_FLOAT32
from simulators.gpu.ptx.module import Instruction, Register
from simulators.gpu.semantics import packed
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

Function = Callable[..., Any]
INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
INFINITY = np.uint32(0x7F800000)
TO_WHOLE: dict[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def range_of(type_name: str) -> tuple[int, int]:
    bits = int(type_name[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_name[0] == "s" else (0, (1 << bits) - 1)


def integers(type_name: str) -> Function:
    """Bits to NumPy integers of the type: int64 or uint64 for 64 bits, else int64 or narrower ones that hold it."""
    if type_name == "u8":
        return lambda bits: bits & np.uint16(0xFF)
    if type_name == "s8":
        return lambda bits: as_signed(bits << np.uint16(8)) >> np.int16(8)
    return as_signed if type_name[0] == "s" else (lambda bits: bits)


def placed(values: Any, type_name: str, width: int) -> Any:
    """Integers cut to a type and extended to a register, as bits; a new array."""
    bits = int(type_name[1:])
    if type_name[0] == "s" and width > bits:
        narrow = integers("s8")(values.astype(np.uint16)) if bits == 8 else values.astype(SIGNED[bits])
        return narrow.astype(UNSIGNED[width])
    result = values.astype(UNSIGNED[bits])
    if bits == 8:
        result &= np.uint16(0xFF)
    return result.astype(UNSIGNED[width], copy=False)


def from_integer_to_integer(source: str, destination: str, width: int, saturates: bool) -> Function:
    load, (least, greatest) = integers(source), range_of(destination)
    source_least, source_greatest = range_of(source)
    least, greatest = max(least, source_least), min(greatest, source_greatest)  # what the source has of that range

    def converted(bits: Any) -> Any:
        values = load(bits)
        if saturates:
            kind = values.dtype.type
            values = np.minimum(np.maximum(values, kind(least)), kind(greatest))
        return placed(values, destination, width)

    return converted


def from_float_to_integer(source: str, destination: str, whole: Function, flushes: bool, width: int) -> Function:
    """Rounds to a whole number and clamps to the type's range."""
    (least, greatest), of_nan = range_of(destination), nan.integer_of_nan(source, destination)
    # 2^63 and 2^64 are beyond their ranges and, unlike the greatest integers, are float64 numbers.
    is_long = int(destination[1:]) == 64
    beyond = float(greatest + 1)
    offset = 2.0**63 if destination == "u64" else 0.0

    def converted(bits: Any) -> Any:
        values = whole(to_float(bits, source, flushes)).astype(np.float64)
        if not is_long:
            result = np.clip(values, least, greatest)
            is_nan = np.isnan(result)
            if is_nan.any():
                result = np.where(is_nan, float(of_nan), result)
            return placed(result.astype(np.int64), destination, width)
        is_over, is_under, is_nan = values >= beyond, values <= least, np.isnan(values)
        inside = np.where(is_over | is_under | is_nan, 0.0, values)
        is_upper = inside >= offset
        result = (inside - is_upper * offset).astype(np.int64).astype(np.uint64)
        result += (is_upper & (offset > 0)).astype(np.uint64) << np.uint64(63)
        edge = np.where(is_over, np.uint64(greatest), np.uint64(least & ((1 << 64) - 1)))
        return np.where(is_nan, np.uint64(of_nan), np.where(is_over | is_under, edge, result))

    return converted


def to_float(bits: Any, source: str, flushes: bool) -> Any:
    """Bits of a floating-point type to float32, or float64 for f64."""
    if source in TO_FLOAT32:
        return TO_FLOAT32[source](bits)
    return as_float(rounding.flush(bits) if flushes and source == "f32" else bits)


def integer_to_float64(values: Any) -> Any:
    """To float64; 64-bit integers that do not fit are rounded to odd."""
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    low = values & values.dtype.type(0xFFFFFFFF)
    return rounding.odd_sum((values - low).astype(np.float64), low.astype(np.float64))


def from_integer_to_float(source: str, destination: str, mode: str, saturates: bool) -> Function:
    load = integers(source)

    def converted(bits: Any) -> Any:
        values = load(bits)
        if destination == "f64":
            if mode == "rn" or values.dtype.itemsize < 8:
                result = as_unsigned(values.astype(np.float64))
            else:
                low = values & values.dtype.type(0xFFFFFFFF)
                upper = (values - low).astype(np.float64)
                result = as_unsigned(rounding.add_float64(upper, low.astype(np.float64), mode))
        elif destination == "f32":
            nearest = values.astype(np.float32) if mode == "rn" else None
            rounded = rounding.float32_of(integer_to_float64(values), mode) if nearest is None else nearest
            result = as_unsigned(rounded)
        else:
            result = encode(integer_to_float64(values), FORMATS[destination], mode).astype(np.uint16)
        return saturated(result, destination) if saturates else result

    return converted


def saturated(bits: Any, type_name: str) -> Any:
    """.sat to a floating-point type: clamped to [+0, 1], NaN to +0."""
    if type_name in TO_FLOAT32:
        wide = as_unsigned(TO_FLOAT32[type_name](bits))
        return OF_FLOAT32[type_name](as_float(rounding.saturate(wide)))
    return rounding.saturate(bits)


def rounded_to(values: Any, destination: str, mode: str, is_finite: bool) -> Any:
    """float32 or float64 to bits of a floating-point type; NaN as the type's."""
    if destination == "f64":
        return as_unsigned(values.astype(np.float64))
    if destination == "f32":
        return nan.canonical(rounding.float32_of(values, mode) if values.dtype == np.float64 else values)
    if mode == "rn" and not is_finite and values.dtype == np.float32:
        return OF_FLOAT32[destination](values)
    return encode(values.astype(np.float64), FORMATS[destination], mode, is_finite).astype(np.uint16)


def from_float_to_float(modifiers: Modifiers, source: str, destination: str, flushes: bool) -> Function:
    """Reads the rounding, .sat, .relu, .satfinite."""
    whole = modifiers.optional(TO_WHOLE)
    mode = modifiers.optional(rounding.MODES)
    saturates, clamps, is_finite = modifiers.has("sat"), modifiers.has("relu"), modifiers.has("satfinite")
    is_narrowing = destination != source and bits_of(destination) <= bits_of(source)
    if whole is not None and (source != destination or mode is not None):
        raise modifiers.refuse("rounding to whole numbers is for one type")
    if (mode is not None) != is_narrowing:
        raise modifiers.refuse("rounding")
    if (clamps or is_finite) and (destination not in TO_FLOAT32 or not is_narrowing):
        raise modifiers.refuse(".relu and .satfinite are for f16 and bf16")
    carries_nan = "f64" in (source, destination) and whole is None and not (destination == "f64" and flushes)
    keeps_bits = source == destination and whole is None

    def converted(bits: Any) -> Any:
        if keeps_bits:
            result = rounding.flush(bits.copy()) if flushes and source == "f32" else bits.copy()
            if source == "f16":
                result = select((result & nan.HALF) > F16_INFINITY, nan.HALF, result)
        elif (source, destination) == ("bf16", "f32"):
            result = as_unsigned(TO_FLOAT32["bf16"](bits))
        else:
            values = to_float(
                bits, source, flushes and destination != "f16"
            )  # an H200 does not flush on the way to f16
            values = values if whole is None else TO_WHOLE[whole](values)
            result = rounded_to(values, destination, mode or "rn", is_finite)
            if carries_nan and nan.has_nan(values):
                result = select(np.isnan(values), nan.carried(bits, source, destination), result)
            elif destination == "f64" and flushes:
                result = select(np.isnan(values), nan.carried(nan.F32, "f32", "f64"), result)
        if flushes and destination == "f32":
            result = rounding.flush(result)
        if saturates:
            result = saturated(result, destination)
        return clamp_negative(result, FORMATS[destination]) if clamps else result

    return converted


def to_tf32(modifiers: Modifiers) -> Elementwise:
    """cvt.rna.tf32.f32: the lower 13 bits of the result are zero."""
    mode = modifiers.one_of(("rna", "rn", "rz"))
    clamps, is_finite = modifiers.has("relu"), modifiers.has("satfinite")
    modifiers.end()
    form, low = FORMATS["tf32"], np.uint32(0x1FFF)

    def converted(bits: Any) -> Any:
        if mode == "rna":  # NaN are cut, and .satfinite takes one unit from them, as it does from infinity
            nearest = select((bits & INFINITY) == INFINITY, bits, bits + np.uint32(0x1000)) & ~low
            if is_finite:
                nearest = nearest - ((nearest & INFINITY) == INFINITY) * (low + np.uint32(1))
            return clamp_negative(nearest, FORMATS["f32"]) if clamps else nearest
        codes = encode(as_float(bits).astype(np.float64), form, mode, is_finite)
        codes = clamp_negative(codes, form) if clamps else codes
        return codes.astype(np.uint32) << np.uint32(13)

    return Elementwise((32,), (32,), converted)


def register_width(instruction: Instruction, type_name: str) -> int:
    """Bits of the register that takes an integer result."""
    destination = instruction.operands[0]
    declared = bits_of(destination.type) if isinstance(destination, Register) else 0
    return max(declared, bits_of(type_name), 16)


def cvt(instruction: Instruction) -> Elementwise:
    if instruction.modifiers[0] == "pack":
        return packed.cvt_pack(instruction)
    modifiers = Modifiers(instruction)
    if packed.is_packed(instruction):
        return packed.cvt(modifiers)
    source = modifiers.type((*INTEGERS, *FLOATS))
    destination = modifiers.type((*INTEGERS, *FLOATS, "tf32"))
    if destination == "tf32":
        if source != "f32":
            raise modifiers.refuse("tf32 is of f32")
        return to_tf32(modifiers)
    flushes = "f32" in (source, destination) and modifiers.has("ftz")
    width = bits_of(destination)
    if source in FLOATS and destination in FLOATS:
        function = from_float_to_float(modifiers, source, destination, flushes)
    elif source in FLOATS:
        whole = TO_WHOLE[modifiers.one_of(TO_WHOLE)]
        modifiers.has("sat")  # the result is clamped anyway
        width = register_width(instruction, destination)
        function = from_float_to_integer(source, destination, whole, flushes, width)
    elif destination in FLOATS:
        function = from_integer_to_float(source, destination, modifiers.one_of(rounding.MODES), modifiers.has("sat"))
    else:
        width = register_width(instruction, destination)
        function = from_integer_to_integer(source, destination, width, modifiers.has("sat"))
    modifiers.end()
    return Elementwise((width,), (bits_of(source),), function)


RESOLVERS = {"cvt": cvt}

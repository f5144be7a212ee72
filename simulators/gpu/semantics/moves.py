"""mov, selp, slct: values that move as they are. PTX ISA 9.7.4 and 9.7.9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import B128, UNSIGNED, as_float, as_signed, select
from simulators.gpu.numbers.rounding import LEAST_NORMAL
from simulators.gpu.ptx.module import Instruction, Vector
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.modifiers import Modifiers, bits_of

WORDS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")


def copy(bits: Any) -> Any:
    return np.array(bits)


def pack(width: int, count: int) -> Callable[..., Any]:
    """`count` equal parts, the lowest first, to one value."""
    part = width // count

    def packed(*parts: Any) -> Any:
        word = UNSIGNED[width]
        result = parts[0].astype(word)
        for index, value in enumerate(parts[1:], 1):
            result = result | (value.astype(word) << word(part * index))
        return result

    return packed


def unpack(width: int, count: int) -> Callable[[Any], tuple[Any, ...]]:
    """One value to `count` equal parts, the lowest first."""
    part = width // count
    mask = UNSIGNED[width]((1 << part) - 1)

    def unpacked(bits: Any) -> tuple[Any, ...]:
        word = UNSIGNED[width]
        return tuple(((bits >> word(part * index)) & mask).astype(UNSIGNED[part]) for index in range(count))

    return unpacked


def pack_halves(low: Any, high: Any) -> Any:
    result = np.empty(np.broadcast_shapes(np.shape(low), np.shape(high)), B128)
    result["low"], result["high"] = low, high
    return result


def unpack_halves(bits: Any) -> tuple[Any, Any]:
    return np.array(bits["low"]), np.array(bits["high"])


def mov(instruction: Instruction) -> Elementwise:
    """Copies; `mov.b64 %rd, {lo, hi}` packs, `mov.b64 {lo, hi}, %rd` takes apart. b128 has two halves alone."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type((*WORDS, "pred", "b128")))
    modifiers.end()
    result, source = instruction.operands
    if not isinstance(result, Vector) and not isinstance(source, Vector):
        return Elementwise((width,), (width,), copy)
    vector = source if isinstance(source, Vector) else result
    assert isinstance(vector, Vector)
    count = len(vector.elements)
    is_known = count == 2 if width == 128 else width // count in (8, 16, 32)
    if not is_known or (isinstance(source, Vector) and isinstance(result, Vector)):
        raise modifiers.refuse(f"{count} parts")
    parts = (width // count,) * count
    if isinstance(source, Vector):
        return Elementwise((width,), parts, pack_halves if width == 128 else pack(width, count))
    return Elementwise(parts, (width,), unpack_halves if width == 128 else unpack(width, count))


def selp(instruction: Instruction) -> Elementwise:
    """selp d, a, b, p: p ? a : b."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type(WORDS))
    modifiers.end()
    return Elementwise((width,), (width, width, 1), lambda a, b, condition: select(condition, a, b))


def slct(instruction: Instruction) -> Elementwise:
    """slct d, a, b, c: c >= 0 ? a : b. A NaN selects b; -0 selects a."""
    modifiers = Modifiers(instruction)
    is_float = modifiers.type(("s32", "f32")) == "f32"
    flushes = is_float and modifiers.has("ftz")  # a negative denormal is zero then, and selects a
    width = bits_of(modifiers.type(WORDS))
    modifiers.end()
    view = as_float if is_float else as_signed

    def selected(a: Any, b: Any, c: Any) -> Any:
        value = view(c)
        return select(value > -LEAST_NORMAL if flushes else value >= 0, a, b)

    return Elementwise((width,), (width, width, 32), selected)


RESOLVERS = {"mov": mov, "selp": selp, "slct": slct}

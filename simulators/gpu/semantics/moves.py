"""mov, selp, slct: values that move as they are. PTX ISA 9.7.4 and 9.7.9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulators.gpu.numbers.arrays import UNSIGNED, as_float, as_signed, select
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


def mov(instruction: Instruction) -> Elementwise:
    """Copies; `mov.b64 %rd, {lo, hi}` packs, `mov.b64 {lo, hi}, %rd` takes apart."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type((*WORDS, "pred")))
    modifiers.end()
    result, source = instruction.operands
    if not isinstance(result, Vector) and not isinstance(source, Vector):
        return Elementwise((width,), (width,), copy)
    vector = source if isinstance(source, Vector) else result
    assert isinstance(vector, Vector)
    count = len(vector.elements)
    if width // count not in (8, 16, 32) or (isinstance(source, Vector) and isinstance(result, Vector)):
        raise modifiers.refuse(f"{count} parts")
    parts = (width // count,) * count
    if isinstance(source, Vector):
        return Elementwise((width,), parts, pack(width, count))
    return Elementwise(parts, (width,), unpack(width, count))


def selp(instruction: Instruction) -> Elementwise:
    """selp d, a, b, p: p ? a : b."""
    modifiers = Modifiers(instruction)
    width = bits_of(modifiers.type(WORDS))
    modifiers.end()
    return Elementwise((width,), (width, width, 1), lambda a, b, condition: select(condition, a, b))


def slct(instruction: Instruction) -> Elementwise:
    """slct d, a, b, c: c >= 0 ? a : b. A NaN selects b; -0 selects a."""
    modifiers = Modifiers(instruction)
    view = as_float if modifiers.type(("s32", "f32")) == "f32" else as_signed
    modifiers.has("ftz")  # a flushed denormal is zero: a negative one selects a
    flushes = "ftz" in instruction.modifiers
    width = bits_of(modifiers.type(WORDS))
    modifiers.end()
    least = -(2.0**-126) if flushes else 0.0

    def selected(a: Any, b: Any, c: Any) -> Any:
        value = view(c)
        return select(value > np.float32(least) if flushes else value >= 0, a, b)

    return Elementwise((width,), (width, width, 32), selected)


RESOLVERS = {"mov": mov, "selp": selp, "slct": slct}

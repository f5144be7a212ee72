"""Initial values of variables, as the bytes in memory.

Source: PTX ISA, section "Initializers". The address of a variable as an initial value is refused.
"""

from __future__ import annotations

import struct
from math import prod

from simulators.gpu.ptx.constants import begins_constant, constant
from simulators.gpu.ptx.lexer import Words
from simulators.gpu.ptx.module import Immediate
from simulators.gpu.ptx.types import TYPE_BYTES

_FLOAT_FORMATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
_LARGEST = 1 << 28  # bytes


def initial_bytes(words: Words, kind: str, length: int, dimensions: list[int]) -> tuple[bytes, list[int]]:
    """The bytes of what follows `=`, without zeros of what is not told, and the dimensions with that of `[]` told."""
    shape = [*dimensions, length] if length > 1 else dimensions
    values: dict[int, bytes] = {}  # by index of the element
    count = _values(words, kind, shape, 0, values)
    if dimensions and dimensions[0] == 0:
        dimensions = [count, *dimensions[1:]]
    size = TYPE_BYTES[kind]
    end = (max(values, default=-1) + 1) * size
    if end > _LARGEST:
        raise words.error(f"an initial value of {end} bytes")
    held = bytearray(end)
    for index, value in values.items():
        held[index * size : (index + 1) * size] = value
    return bytes(held), dimensions


def _values(words: Words, kind: str, shape: list[int], first: int, values: dict[int, bytes]) -> int:
    """Reads the value of an array of that shape from element `first` on; how many it has along its first dimension."""
    if not shape:
        values[first] = _value(words, kind)
        return 1
    words.expect("{")
    stride = prod(shape[1:])
    count = 0
    while not (count == 0 and words.accept("}")):
        if shape[0] and count == shape[0]:
            raise words.error(f"more initial values than the {shape[0]} of the array")
        _values(words, kind, shape[1:], first + count * stride, values)
        count += 1
        if not words.accept(","):
            words.expect("}")
            break
    return count


def _value(words: Words, kind: str) -> bytes:
    first = words.at
    if not begins_constant(words.next):
        what = "a constant (the address of a variable as an initial value is not supported)"
        raise words.expected(what)
    value = constant(words)
    size = TYPE_BYTES[kind]
    try:
        if kind in _FLOAT_FORMATS and value.float_bits != 8 * size:
            return struct.pack(_FLOAT_FORMATS[kind], _as_float(value))
        if kind not in _FLOAT_FORMATS and value.float_bits:
            raise words.error(f"a floating-point constant is no initial value of type {kind}", first)
        return (value.value & (1 << 8 * size) - 1).to_bytes(size, "little")
    except OverflowError:
        raise words.error(f"the initial value is too large for type {kind}", first) from None


def _as_float(value: Immediate) -> float:
    if value.float_bits == 0:
        return float(value.value)
    code, size = ("<f", 4) if value.float_bits == 32 else ("<d", 8)
    return struct.unpack(code, value.value.to_bytes(size, "little"))[0]

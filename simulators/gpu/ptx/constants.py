"""Numbers and constant expressions of PTX.

Source: PTX ISA, sections "Constants" and "Constant Expressions"; of the latter signs, `~`, `*`, `+`, `-` and shifts of
integers, without parentheses.
"""

from __future__ import annotations

import math
import re
import struct
from functools import lru_cache

from simulators.gpu.ptx.lexer import Words
from simulators.gpu.ptx.module import Immediate

_INTEGER = re.compile(
    r"(?:0[xX](?P<hexadecimal>[0-9a-fA-F]{1,40})|0[bB](?P<binary>[01]{1,64})|(?P<octal>0[0-7]{0,30})"
    r"|(?P<decimal>[1-9][0-9]{0,30}))U?"
)
_BASES = {"hexadecimal": 16, "binary": 2, "octal": 8, "decimal": 10}
_FLOAT_BITS = re.compile(r"0(?:[fF](?P<single>[0-9a-fA-F]{8})|[dD](?P<double>[0-9a-fA-F]{16}))")
_DECIMAL_FLOAT = re.compile(r"(?=[0-9]*[.eE])(?=\.?[0-9])[0-9]{0,400}(?:\.[0-9]{0,1100})?(?:[eE][+-]?[0-9]{1,4})?")
_SHIFT_LIMIT = 64


@lru_cache(maxsize=4096)
def number(word: str) -> Immediate | None:
    """What a word of digits means; None if it means nothing, or needs more than 64 bits."""
    if match := _INTEGER.fullmatch(word):
        base = match.lastgroup or ""
        return _within_64_bits(int(match[base], _BASES[base]))
    if match := _FLOAT_BITS.fullmatch(word):
        if digits := match["single"]:
            return Immediate(int(digits, 16), float_bits=32)
        return Immediate(int(match["double"], 16), float_bits=64)
    if _DECIMAL_FLOAT.fullmatch(word) and math.isfinite(value := float(word)):
        return Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], float_bits=64)
    return None


def begins_constant(word: str) -> bool:
    return word[:1].isdigit() or word in ("-", "+", "~", "WARP_SZ") or (word[:1] == "." and word[1:2].isdigit())


def constant(words: Words) -> Immediate:
    """The constant expression that comes next."""
    first = words.at
    value = _sum(words)
    while (operator := words.next) in ("<<", ">>"):
        left = _integer(words, value)
        words.take()
        distance = _integer(words, _sum(words))
        if not 0 <= distance < _SHIFT_LIMIT:
            raise words.error(f"a constant is shifted by {distance}, not by 0 to {_SHIFT_LIMIT - 1}", first)
        value = Immediate(left << distance if operator == "<<" else left >> distance)
    if value.float_bits == 0 and _within_64_bits(value.value) is None:
        raise words.error("a constant needs more than 64 bits", first)
    return value


def integer(words: Words, what: str) -> int:
    """The constant expression that comes next, which must be an integer."""
    if not begins_constant(words.next):
        raise words.expected(what)
    return _integer(words, constant(words))


def _integer(words: Words, value: Immediate) -> int:
    if value.float_bits:
        raise words.error("an integer is needed where a floating-point constant is")
    return value.value


def _within_64_bits(value: int) -> Immediate | None:
    return Immediate(value) if -(1 << 63) <= value < 1 << 64 else None


def _sum(words: Words) -> Immediate:
    value = _product(words)
    while (operator := words.next) in ("+", "-"):
        left = _integer(words, value)
        words.take()
        right = _integer(words, _product(words))
        value = Immediate(left + right if operator == "+" else left - right)
    return value


def _product(words: Words) -> Immediate:
    value = _signed(words)
    while words.next == "*":
        left = _integer(words, value)
        words.take()
        value = Immediate(left * _integer(words, _signed(words)))
    return value


def _signed(words: Words) -> Immediate:
    signs = []
    while words.next in ("-", "+", "~"):
        signs.append(words.take())
    value = Immediate(32) if words.next == "WARP_SZ" else number(words.next)
    if value is None:
        raise words.expected("a constant of at most 64 bits")
    words.take()
    for sign in reversed(signs):
        if value.float_bits and sign == "-":
            value = Immediate(value.value ^ 1 << value.float_bits - 1, value.float_bits)
        elif sign != "+":
            bits = _integer(words, value)
            value = Immediate(-bits if sign == "-" else ~bits)
    return value

"""Operands of instructions.

Source: PTX ISA, sections "Operand Type Information", "Using Addresses, Arrays, and Vectors", "Labels and Function Names
as Operands".
"""

from __future__ import annotations

from simulators.gpu.ptx.constants import begins_constant, constant, integer
from simulators.gpu.ptx.lexer import Words, is_name
from simulators.gpu.ptx.module import (
    Address,
    Label,
    NotRegister,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from simulators.gpu.ptx.scopes import Scope
from simulators.gpu.ptx.types import SPECIAL_REGISTERS

_SINK = Sink()
_ENDS = (",", ";")
UNRESOLVED = -1  # the target of a label that may yet follow


def operand(words: Words, scope: Scope, is_label: bool = False) -> Operand:
    """The operand that comes next. Where `is_label`, a name that nothing has is a label's, its target not yet known."""
    found = scope.names.get(words.words[words.at])
    if found is not None and words.words[words.at + 1] in _ENDS:  # by far the most are like this
        words.at += 1
        return found
    word = words.next
    if word == "[":
        return _address(words, scope)
    if word == "{":
        return _vector(words, scope)
    if word == "(" and is_label:
        return _arguments(words, scope)
    first = _simple(words, scope, is_label)
    if words.accept("|"):
        return Pair(first, _simple(words, scope, is_label=False))
    return first


def _simple(words: Words, scope: Scope, is_label: bool) -> Operand:
    """An operand without brackets."""
    word = words.next
    if word == "!":
        words.take()
        return NotRegister(predicate(words, scope))
    if begins_constant(word):
        return constant(words)
    found = scope.find(word)
    if found is None:
        if word == "_":
            found = _SINK
        elif word in SPECIAL_REGISTERS:
            found = Special(word)
        elif is_label and words.name("an operand"):
            return Label(word, UNRESOLVED)
        else:
            found = _declared(words, scope)
            if found is None:
                raise words.expected("an operand")
    words.take()
    if isinstance(found, Symbol) and words.next in ("+", "-"):
        return Symbol(found.name, _offset(words))
    return found


def predicate(words: Words, scope: Scope) -> Register:
    """The register of type pred that comes next."""
    found = _declared(words, scope)
    if not isinstance(found, Register) or found.type != "pred":
        raise words.expected("a register of type pred")
    words.take()
    return found


def _declared(words: Words, scope: Scope) -> Operand | None:
    """What the next word means; None if it is no name. A name that nothing has is an error."""
    word = words.next
    found = scope.find(word)
    if found is None and is_name(word.partition(".")[0]):
        raise words.error(f"{word} is not declared")
    return found


def _offset(words: Words) -> int:
    """`+8`, `-4`, `+-4`, or nothing."""
    if not words.accept("+") and words.next != "-":
        return 0
    return integer(words, "an offset in bytes")


def _address(words: Words, scope: Scope) -> Operand:
    """`[base+offset]`, or `[base, {coordinates}]` of a tensor."""
    words.expect("[")
    base: Register | Symbol | None = None
    if begins_constant(words.next):
        offset = integer(words, "an address")
    else:
        found = _declared(words, scope)
        if not isinstance(found, Register | Symbol):
            raise words.expected("a register, a variable or a constant that is an address")
        words.take()
        base, offset = found, _offset(words)
    address = Address(base, offset)
    if words.accept(","):
        coordinates = _vector(words, scope)
        words.expect("]")
        return Vector((address, coordinates))
    words.expect("]")
    return address


def _vector(words: Words, scope: Scope) -> Vector:
    words.expect("{")
    return Vector(_elements(words, scope, "}"))


def _arguments(words: Words, scope: Scope) -> Vector:
    """`(a, b)` of a call."""
    words.expect("(")
    return Vector(() if words.accept(")") else _elements(words, scope, ")"))


def _elements(words: Words, scope: Scope, end: str) -> tuple[Operand, ...]:
    found: list[Operand] = []
    while True:
        known = scope.names.get(words.words[words.at])
        if known is None:
            known = _simple(words, scope, is_label=False)
        else:
            words.at += 1
        found.append(known)
        if not words.accept(","):
            words.expect(end)
            return tuple(found)

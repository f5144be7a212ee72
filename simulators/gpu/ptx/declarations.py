"""Declarations of registers, variables and parameters.

Source: PTX ISA, sections "Variables", "Parameterized Variable Names", "Kernel Function Parameters", "Array
Declarations", "Initializers", "Alignment".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from simulators.gpu.ptx.constants import integer
from simulators.gpu.ptx.initializers import initial_bytes
from simulators.gpu.ptx.lexer import Words
from simulators.gpu.ptx.module import Parameter, Variable
from simulators.gpu.ptx.scopes import Scope
from simulators.gpu.ptx.types import REGISTER_TYPES, TYPE_BYTES, VECTOR_LENGTHS

LINKAGE = (".visible", ".extern", ".weak", ".common")
SPACES = (".global", ".shared", ".const", ".local", ".param")  # `.param`: the arguments of a call within a kernel
_LARGEST = 1 << 40  # bytes of a variable
_MOST_DIMENSIONS = 16
_POINTER_SPACES = (".const", ".global", ".local", ".shared", ".generic", ".param")


@dataclass(frozen=True)
class _Type:
    """What stands before declared names: `.align 16 .v4 .f32`."""

    name: str
    length: int
    align: int | None  # as written

    @property
    def size(self) -> int:
        return TYPE_BYTES[self.name] * self.length


def registers(words: Words, scope: Scope) -> None:
    """`.reg .b32 %r<230>, %x;`; the word `.reg` is behind."""
    kind, length = _vector_length_and_type(words, REGISTER_TYPES)
    while True:
        first = words.at
        name = words.name("a register's name")
        if words.accept("<"):
            count = integer(words, "a number of registers")
            words.expect(">")
            is_new = scope.declare_registers(name, kind, length, count)
        else:
            is_new = not scope.is_taken(name)
            if is_new:
                scope.declare_register(name, kind, length)
        if not is_new:
            raise words.error(f"{name} is declared already", first)
        if not words.accept(","):
            break
    words.expect(";")


def variables(words: Words, scope: Scope, linkage: set[str]) -> list[Variable]:
    """`.shared .align 16 .b8 x[1024], y[4];` from the state space on; what is declared is known in the scope."""
    space = words.take()
    kind = _type(words)
    declared = []
    while True:
        first = words.at
        name = words.name("a variable's name")
        if scope.is_taken(name):
            raise words.error(f"{name} is declared already", first)
        dimensions = _dimensions(words)
        initial = b""
        if words.accept("="):
            if space not in (".global", ".const"):
                raise words.error(f"a variable in {space} has no initial value", first)
            initial, dimensions = initial_bytes(words, kind.name, kind.length, dimensions)
        is_external = ".extern" in linkage
        if 0 in dimensions and not is_external:
            raise words.error(f"{name} has no size", first)
        size = kind.size * prod(dimensions)
        if size > _LARGEST:
            raise words.error(f"{name} would have {size} bytes", first)
        unique = scope.declare_symbol(name)
        align = kind.align or kind.size
        declared.append(Variable(unique, space[1:], size, align, is_external=is_external, initial=initial))
        if not words.accept(","):
            break
    words.expect(";")
    return declared


def parameters(words: Words, scope: Scope) -> tuple[Parameter, ...]:
    """A kernel's list of parameters; its opening parenthesis is behind.

    Each begins at the next multiple of its alignment, that of its type unless `.align` tells another, as the members
    of a C structure do.
    """
    declared: list[Parameter] = []
    end = 0
    if words.accept(")"):
        return ()
    while True:
        words.expect(".param")
        kind = _type(words)
        first = words.at
        name = words.name("a parameter's name")
        if scope.is_taken(name):
            raise words.error(f"{name} is declared already", first)
        dimensions = _dimensions(words)
        if 0 in dimensions:
            raise words.error(f"{name} has no size", first)
        align = kind.align or kind.size
        offset = -(-end // align) * align
        declared.append(Parameter(scope.declare_symbol(name), offset, kind.size * prod(dimensions), align))
        end = offset + declared[-1].size
        if not words.accept(","):
            break
    words.expect(")")
    return tuple(declared)


def _vector_length_and_type(words: Words, known: Collection[str]) -> tuple[str, int]:
    length = VECTOR_LENGTHS.get(words.next, 1)
    if length > 1:
        words.take()
    if words.next[:1] != "." or words.next[1:] not in known:
        raise words.expected("a type")
    return words.take()[1:], length


def _type(words: Words) -> _Type:
    if words.accept(".attribute"):
        words.expect("(")
        while not words.accept(")"):
            if not words.take():
                raise words.expected("')'")
    align = _alignment(words)
    name, length = _vector_length_and_type(words, TYPE_BYTES)
    # `.param .u64 .ptr .global .align 16 x`: the alignment is that of what x points to.
    pointee = words.accept(".ptr")
    if pointee:
        if words.next in _POINTER_SPACES:
            words.take()
        _alignment(words)
    return _Type(name, length, None if pointee else align)


def _alignment(words: Words) -> int | None:
    if not words.accept(".align"):
        return None
    first = words.at
    align = integer(words, "an alignment")
    if align <= 0 or align & align - 1 or align > _LARGEST:
        raise words.error(f"an alignment is a power of two, not {align}", first)
    return align


def _dimensions(words: Words) -> list[int]:
    """`[2][3]`, or [] of a scalar. 0 of `[]`, which only the first may be."""
    found: list[int] = []
    while words.accept("["):
        first = words.at
        if len(found) == _MOST_DIMENSIONS:
            raise words.error(f"an array of more than {_MOST_DIMENSIONS} dimensions")
        if not found and words.accept("]"):
            found.append(0)
            continue
        size = integer(words, "the size of an array")
        if size <= 0:
            raise words.error(f"the size of an array is {size}", first)
        found.append(size)
        words.expect("]")
    return found

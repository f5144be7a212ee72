"""Which register, variable, parameter or label a name means, where names of inner braces hide those of outer ones.

Source: PTX ISA, sections "Parameterized Variable Names" and "Labels": a name is known from its declaration to the end
of the braces around it. Text of inline assembly declares the same names again and again, each time within braces.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulators.gpu.ptx.module import Operand, Register, Symbol, Vector
from simulators.gpu.ptx.types import COMPONENTS

_LETTERS = "xyzw"  # of a vector register's parts


@dataclass(frozen=True)
class _Range:
    """Registers `%r<count>`: those of a thousand cost nothing until they are named."""

    type: str
    length: int  # of each as a vector; 1: a scalar
    count: int


@dataclass
class Scope:
    """What is declared between two braces, or at the outermost level of a module or kernel.

    `suffix` follows the names of what is declared in it and makes them unlike all others of the kernel.
    """

    outer: Scope | None = None
    suffix: str = ""
    names: dict[str, Operand] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)  # to indices of instructions
    _ranges: dict[str, _Range] = field(default_factory=dict)  # by what is before the index

    def find(self, name: str) -> Operand | None:
        """The register, vector register or symbol of that name; None if nothing is."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is None and scope._ranges:
                found = scope._of_range(name)
            if found is not None:
                return found
            scope = scope.outer
        base, dot, component = name.partition(".")
        vector = self.find(base) if dot else None
        if isinstance(vector, Vector) and COMPONENTS.get(component, 8) < len(vector.elements):
            return vector.elements[COMPONENTS[component]]
        return None

    def label(self, name: str) -> tuple[str, int] | None:
        """The unique name of a label and the index of its instruction; None if no label has that name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return name + scope.suffix, scope.labels[name]
            scope = scope.outer
        return None

    def is_taken(self, name: str) -> bool:
        return name in self.names or self._of_range(name) is not None

    def declare_register(self, name: str, kind: str, length: int = 1) -> None:
        self.names[name] = self._register(name, kind, length)

    def declare_registers(self, prefix: str, kind: str, length: int, count: int) -> bool:
        """`prefix<count>`. False, and nothing done, where one of them is declared already."""
        if prefix in self._ranges or any(_index_after(prefix, name) in range(count) for name in self.names):
            return False
        self._ranges[prefix] = _Range(kind, length, count)
        return True

    def declare_symbol(self, name: str) -> str:
        """Its unique name. It has the suffix also where it would hide a symbol of an outer scope."""
        hides = self.outer is not None and self.outer.find(name) is not None
        unique = f"{name}{self.suffix or '@0'}" if self.suffix or hides else name
        self.names[name] = Symbol(unique)
        return unique

    def _register(self, name: str, kind: str, length: int) -> Operand:
        if length == 1:
            return Register(name + self.suffix, kind)
        return Vector(tuple(Register(f"{name}{self.suffix}.{letter}", kind) for letter in _LETTERS[:length]))

    def _of_range(self, name: str) -> Operand | None:
        for prefix, known in self._ranges.items():
            if name.startswith(prefix) and _index_after(prefix, name) in range(known.count):
                self.names[name] = self._register(name, known.type, known.length)
                return self.names[name]
        return None


def _index_after(prefix: str, name: str) -> int:
    """n of a name `prefix` n, where n has no needless zeros; else -1."""
    digits = name[len(prefix) :]
    if not name.startswith(prefix) or not digits.isdecimal() or len(digits) > 9 or str(int(digits)) != digits:
        return -1
    return int(digits)

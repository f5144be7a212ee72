"""What a PTX text says, as data: a module of kernels, each a list of instructions.

Names are resolved: a register stands for itself wherever it is declared (a register of an inner scope has a name that
no other has), a label is the index of an instruction, a parameter an offset into the parameters' bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """Where an instruction comes from: its line in the PTX, and in the source that it was compiled from, if told."""

    line: int  # of the PTX text, from 1
    file: str | None = None  # as `.file` names it
    source_line: int = 0  # as `.loc` says

    def __str__(self) -> str:
        ptx = f"PTX line {self.line}"
        return ptx if self.file is None else f"{self.file}:{self.source_line} ({ptx})"


@dataclass(frozen=True)
class Register:
    """One of a thread's registers. `.reg .v4 .b32 v` declares four, `v.x` to `v.w`; `v` is a Vector of them."""

    name: str  # "%r12"; of an inner scope: "%r12@3"
    type: str  # as declared, without the dot: "b32", "f32", "pred", "b128"


@dataclass(frozen=True)
class NotRegister:
    """A predicate that is read inverted: `!%p1`."""

    register: Register


@dataclass(frozen=True)
class Immediate:
    """A constant. Integers as written (negative ones too); floating-point ones as their bits."""

    value: int
    float_bits: int = 0  # 32 or 64 for 0f and 0d constants and decimals (these are f64); 0: an integer


@dataclass(frozen=True)
class Special:
    """A special register: "%tid.x", "%laneid", "%clock64"."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable of the module or the kernel, or of a parameter, plus an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`: where memory is accessed. Base None: the offset is the address."""

    base: Register | Symbol | None
    offset: int = 0  # bytes


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`. A tensor-map address is `Vector` of an Address and a Vector of coordinates, as it is written."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """`a|b`: two results, such as setp's %p|%q and shfl's %r|%p."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Label:
    """Where a branch goes: the index of an instruction (one past the last: the kernel's end).

    The second operand of `brx.idx` names a list in `Kernel.branch_targets` instead; its own target is of no use.
    """

    name: str  # of an inner scope: "DONE@3"
    target: int


@dataclass(frozen=True)
class Sink:
    """`_`: a result that nobody wants."""


Operand = Register | NotRegister | Immediate | Special | Symbol | Address | Vector | Pair | Label | Sink


@dataclass(frozen=True)
class Instruction:
    """One instruction: `@guard opcode.modifiers operands;`."""

    opcode: str  # what is before the first dot: "add", "cp", "mbarrier"
    modifiers: tuple[str, ...]  # the rest, in the text's order: ("async", "bulk", "shared::cluster", ...)
    operands: tuple[Operand, ...]  # in the text's order; memory operands as Address
    place: Place
    guard: Register | NotRegister | None = None
    text: str = ""  # as it is written, on one line, for messages

    @property
    def name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """Memory that is declared: in a state space, of so many bytes."""

    name: str
    space: str  # "shared", "global", "const", "local"; "param" within a kernel: an argument of a call
    size: int  # bytes; 0 for `.extern .shared x[]`, which is as large as the launch says
    align: int
    is_external: bool = False
    initial: bytes = b""  # zero-filled beyond its end


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter."""

    name: str
    offset: int  # bytes, in the block of all parameters
    size: int
    align: int


@dataclass(frozen=True)
class Kernel:
    """An `.entry`."""

    name: str
    parameters: tuple[Parameter, ...]
    instructions: tuple[Instruction, ...]
    variables: tuple[Variable, ...] = ()  # those declared within it
    directives: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # "reqntid": (256, 1, 1), "maxntid", ...
    labels: Mapping[str, int] = field(default_factory=dict)  # for messages and for `brx.idx`
    branch_targets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # `.branchtargets` lists by their label

    @property
    def parameter_bytes(self) -> int:
        return max((one.offset + one.size for one in self.parameters), default=0)


@dataclass(frozen=True)
class Module:
    """One PTX text."""

    version: str  # "8.8"
    target: str  # "sm_90a"
    kernels: Mapping[str, Kernel]
    variables: tuple[Variable, ...] = ()  # of the module: .global, .const, .shared

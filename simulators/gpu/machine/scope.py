"""What an instruction's operands stand for in one kernel: registers by number, variables by address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import REGISTER_DTYPES, Threads, is_all
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.machine.special import is_special, read_special
from simulators.gpu.memory.spaces import RANK_SHIFT
from simulators.gpu.numbers.arrays import B128
from simulators.gpu.ptx.module import (
    Address,
    Immediate,
    Instruction,
    NotRegister,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

Array = NDArray[Any]
Source = Callable[["Machine", Threads], Array]  # one value a thread, or a NumPy scalar for all of them
Destination = Callable[["Machine", Threads, Array], None]  # takes the array over

DTYPES = {1: np.dtype(np.bool_), 8: np.dtype(np.uint8), 128: B128} | {
    bits: np.dtype(f"u{bits // 8}") for bits in (16, 32, 64)
}


@dataclass(frozen=True)
class Variable:
    """A variable's place."""

    space: str
    address: int  # within its space; shared: of a block of rank 0


@dataclass
class Scope:
    """Names of one kernel. Registers get numbers as they are met."""

    variables: Mapping[str, Variable]
    constants: tuple[tuple[int, int], ...] = ()  # addresses at which .const variables begin, and end
    register_types: list[str] = field(default_factory=list)
    written: set[int] = field(default_factory=set)  # numbers of registers that were asked for as a destination
    alike: dict[str, list[Any]] = field(default_factory=dict)  # places at which threads meet, by the instruction's name
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, register: Register, instruction: Instruction) -> int:
        if register.name not in self._numbers:
            if register.type not in REGISTER_DTYPES:
                raise UnsupportedInstruction(instruction, f"registers of type .{register.type} are not")
            self._numbers[register.name] = len(self.register_types)
            self.register_types.append(register.type)
        return self._numbers[register.name]

    def bits_of(self, register: Register) -> int:
        dtype = REGISTER_DTYPES[register.type]
        return 1 if dtype == np.bool_ else 8 * dtype.itemsize

    def source(self, instruction: Instruction, operand: Operand, bits: int) -> Source:
        """A value of so many bits (1: a predicate). A wider register gives its low bits."""
        dtype = DTYPES[bits]
        match operand:
            case Register():
                number = self.number(operand, instruction)
                has = self.bits_of(operand)
                if has == bits:
                    return lambda machine, threads: machine.registers[number][threads]
                if has < bits or bits == 1 or has == 128:  # 128 bits are taken whole
                    raise UnsupportedInstruction(instruction, f"{operand.name} has {has} bits; {bits} are needed")
                return lambda machine, threads: machine.registers[number][threads].astype(dtype)
            case NotRegister():
                number = self.number(operand.register, instruction)
                return lambda machine, threads: ~machine.registers[number][threads]
            case Immediate():
                constant = constant_of(instruction, operand, bits)
                return lambda machine, threads: constant
            case Special() if is_special(operand.name):
                name = operand.name
                return lambda machine, threads: read_special(machine, name)[threads].astype(dtype)
            case Symbol():
                address = self.address(instruction, operand)
                return lambda machine, threads: address(machine, threads).astype(dtype)
        raise UnsupportedInstruction(instruction, f"operand {operand} is not")

    def sources(self, instruction: Instruction, operands: tuple[Operand, ...], bits: tuple[int, ...]) -> list[Source]:
        flat = [element for operand in operands for element in flatten(operand)]
        if len(flat) != len(bits):
            raise UnsupportedInstruction(instruction, f"it has {len(flat)} source operands; {len(bits)} are known")
        return [self.source(instruction, one, width) for one, width in zip(flat, bits, strict=True)]

    def destination(self, instruction: Instruction, operand: Operand, *, signed: bool = False) -> Destination:
        """A register of any width; narrower values are zero-extended, or sign-extended where `signed`."""
        if isinstance(operand, Sink):
            return lambda machine, threads, value: None
        if not isinstance(operand, Register):
            raise UnsupportedInstruction(instruction, f"a result cannot go to {operand}")
        number = self.number(operand, instruction)
        self.written.add(number)
        dtype = REGISTER_DTYPES[operand.type]

        def put(machine: Machine, threads: Threads, value: Array) -> None:
            if value.dtype != dtype:
                if dtype == B128:
                    raise UnsupportedInstruction(instruction, f"{operand.name} has 128 bits; its results have fewer")
                value = _extended(value, dtype, signed)
            if is_all(threads):
                whole = value if value.ndim == 1 else np.full(machine.batch.num_threads, value)
                machine.registers[number] = whole
                return
            register = machine.registers[number]
            if not register.flags.writeable:  # nobody has written to it yet
                register = machine.registers[number] = register.copy()
            register[threads] = value

        return put

    def destinations(self, instruction: Instruction, operand: Operand, *, signed: bool = False) -> list[Destination]:
        return [self.destination(instruction, one, signed=signed) for one in flatten(operand)]

    def place_of(self, operand: Operand) -> int | None:
        """The address, within its space, of a variable that is not shared. None: a register tells it, or a block."""
        match operand:
            case Address(base=Symbol() as symbol, offset=offset):
                pass
            case Symbol() as symbol:
                offset = 0
            case _:
                return None
        variable = self.variables.get(symbol.name)
        if variable is None or variable.space == "shared":
            return None
        return variable.address + symbol.offset + offset

    def address(self, instruction: Instruction, operand: Operand) -> Source:
        """u64: of `[base + offset]`, or of a variable."""
        match operand:
            case Address(base=Register() as base, offset=offset):
                return self._register_address(instruction, base, offset)
            case Address(base=Symbol() as base, offset=offset):
                return self._variable_address(instruction, base.name, base.offset + offset)
            case Symbol(name=name, offset=offset):
                return self._variable_address(instruction, name, offset)
            case Address(base=None, offset=offset):
                fixed = np.uint64(offset)
                return lambda machine, threads: np.full(machine.batch.count(threads), fixed)
        raise UnsupportedInstruction(instruction, f"{operand} is no address")

    def _register_address(self, instruction: Instruction, base: Register, offset: int) -> Source:
        number, step = self.number(base, instruction), np.uint64(offset & 0xFFFFFFFFFFFFFFFF)
        if self.bits_of(base) == 64:
            if offset == 0:
                return lambda machine, threads: machine.registers[number][threads]
            return lambda machine, threads: machine.registers[number][threads] + step
        # A 32-bit address wraps around at 32 bits.
        short = np.uint32(offset & 0xFFFFFFFF)
        return lambda machine, threads: (machine.registers[number][threads] + short).astype(np.uint64)

    def _variable_address(self, instruction: Instruction, name: str, offset: int) -> Source:
        if name not in self.variables:
            raise UnsupportedInstruction(instruction, f"{name} is no variable")
        variable = self.variables[name]
        place = np.uint64(variable.address + offset)
        if variable.space == "shared":
            return lambda machine, threads: place + _rank_bits(machine, threads)
        return lambda machine, threads: np.full(machine.batch.count(threads), place)


def flatten(operand: Operand) -> tuple[Operand, ...]:
    """A vector's or pair's elements; anything else is one."""
    match operand:
        case Vector():
            return operand.elements
        case Pair():
            return operand.first, operand.second
        case _:
            return (operand,)


def constant_of(instruction: Instruction, immediate: Immediate, bits: int) -> Any:
    """A NumPy scalar of so many bits. A floating-point constant that is written in another width is converted."""
    value = immediate.value
    if bits == 1:
        return np.bool_(value != 0)
    if bits == 128:
        raise UnsupportedInstruction(instruction, "a constant of 128 bits is not")
    if immediate.float_bits and immediate.float_bits != bits:
        wide = {32: np.float32, 64: np.float64}
        if bits not in wide:
            raise UnsupportedInstruction(instruction, f"a constant of {immediate.float_bits} bits where {bits} are")
        number = np.array(value, f"u{immediate.float_bits // 8}").view(wide[immediate.float_bits])
        value = int(number.astype(wide[bits]).view(DTYPES[bits]))
    return DTYPES[bits].type(value & ((1 << bits) - 1))


def _extended(value: Array, dtype: np.dtype[Any], signed: bool) -> Array:
    if signed and value.dtype.itemsize < dtype.itemsize:
        signed_value = value.view(f"i{value.dtype.itemsize}")
        return signed_value.astype(f"i{dtype.itemsize}").view(dtype)
    return value.astype(dtype)


def _rank_bits(machine: Machine, threads: Threads) -> Array:
    if machine.batch.launch.cluster_blocks == 1:
        return np.zeros(machine.batch.count(threads), np.uint64)
    return read_special(machine, "%cluster_ctarank")[threads].astype(np.uint64) << np.uint64(RANK_SHIFT)

"""Writes a parsed instruction as PTX again, apart from blanks, so that nothing of it can have been lost or mixed up."""

import re

from simulators.gpu.ptx.module import (
    Address,
    Immediate,
    Instruction,
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


def spelled(instruction: Instruction) -> str:
    """Without blanks, numbers as `plain` has them, names without what makes those of inner braces unique."""
    guard = f"@{_operand(instruction.guard)}" if instruction.guard else ""
    return guard + instruction.name + ",".join(map(_operand, instruction.operands))


def plain(text: str) -> str:
    """PTX without blanks, and its integers in decimal digits."""
    text = re.sub(r"(?<![\w%$.])0[xX][0-9a-fA-F]+", lambda found: str(int(found[0], 16)), text)
    return re.sub(r"\s", "", text)


def _operand(operand: Operand | None) -> str:  # noqa: PLR0911
    match operand:
        case Register(name) | Label(name):
            return name.partition("@")[0] + ("." + name.rpartition(".")[2] if "." in name else "")
        case NotRegister(register):
            return f"!{_operand(register)}"
        case Immediate(value, 0):
            return str(value)
        case Immediate(value, bits):
            return f"0{'f' if bits == 32 else 'd'}{value:0{bits // 4}X}"
        case Special(name):
            return name
        case Symbol(name, offset):
            return name + _offset(offset)
        case Address(None, offset):
            return f"[{offset}]"
        case Address(base, offset):
            return f"[{_operand(base)}{_offset(offset)}]"
        case Vector((Address() as address, Vector() as coordinates)):
            return f"{_operand(address)[:-1]},{_operand(coordinates)}]"
        case Vector(elements):
            return "{" + ",".join(map(_operand, elements)) + "}"
        case Pair(first, second):
            return f"{_operand(first)}|{_operand(second)}"
        case Sink():
            return "_"
    raise AssertionError(operand)


def _offset(offset: int) -> str:
    return f"+{offset}" if offset else ""

"""Reads an instruction's modifiers one after the other; what is left unread is not known and is refused."""

from __future__ import annotations

from collections.abc import Collection

from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.ptx.module import Instruction


def bits_of(type_name: str) -> int:
    """Bits of a value of a PTX type: "f32" 32, "bf16x2" 32, "pred" 1, "tf32" 32, "e4m3x2" 16."""
    if type_name == "pred":
        return 1
    name, _, count = type_name.partition("x")
    digits = {"e4m3": 8, "e5m2": 8, "ue8m0": 8, "e2m1": 4, "e2m3": 8, "e3m2": 8}.get(name)
    bits = int(name.lstrip("abcdefghijklmnopqrstuvwxyz")) if digits is None else digits
    return bits * int(count or 1)


class Modifiers:
    """The modifiers of one instruction that no one has read yet, in the text's order."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.left = list(instruction.modifiers)

    def has(self, name: str) -> bool:
        """Takes a modifier if it is there."""
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def one_of(self, names: Collection[str], default: str | None = None) -> str:
        """Takes the first modifier that is among the names; without a default there must be one."""
        for name in self.left:
            if name in names:
                self.left.remove(name)
                return name
        if default is None:
            raise UnsupportedInstruction(self.instruction, f"one of .{', .'.join(sorted(names))} is missing")
        return default

    def optional(self, names: Collection[str]) -> str | None:
        """Takes the first modifier that is among the names, if there is one."""
        return self.one_of(names, "") or None

    def type(self, allowed: Collection[str]) -> str:
        """Takes the last modifier, which is the instruction's type."""
        if not self.left or self.left[-1] not in allowed:
            raise UnsupportedInstruction(self.instruction, "its type")
        return self.left.pop()

    def end(self) -> None:
        """Everything must have been read."""
        if self.left:
            raise UnsupportedInstruction(self.instruction, f"modifier .{self.left[0]}")

    def refuse(self, why: str) -> UnsupportedInstruction:
        return UnsupportedInstruction(self.instruction, why)

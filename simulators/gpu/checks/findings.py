"""What the race check has found, in words: one finding for each kind and pair of instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulators.gpu.checks.clocks import Clocks
from simulators.gpu.checks.proxies import Initialised
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Access, Finding

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

_MOST = 100


class Findings:
    """So far. Instructions are numbered as they come."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._numbers: dict[int, int] = {}  # of instructions, by id: they are held below
        self._instructions: list[Instruction] = []
        self._found: dict[tuple[str, int, int], Finding] = {}

    @property
    def findings(self) -> Sequence[Finding]:
        return tuple(self._found.values())

    def number(self, instruction: Instruction) -> int:
        number = self._numbers.get(id(instruction))
        if number is None:
            number = self._numbers[id(instruction)] = len(self._instructions)
            self._instructions.append(instruction)
        return number

    def instruction(self, number: int) -> Instruction:
        return self._instructions[number]

    def add(self, kind: str, instruction: Instruction, before: Instruction, message: str) -> None:
        pair = kind, self.number(instruction), self.number(before)
        if pair not in self._found and len(self._found) < _MOST:
            self._found[pair] = Finding(kind, message, instruction.place)

    def add_race(self, machine: Machine, access: Access, other: int, thread: int, other_thread: int, byte: int) -> None:
        """other: the number of the instruction before, and other_thread that of who did it, or asked for it."""
        before = self.instruction(other)
        message = (
            f"{machine.batch.describe(thread)} does {access.instruction.text} and {self.name(machine, other_thread)} "
            f"does {before.text} ({before.place}), both at {where(access, byte)}, and nothing orders them"
        )
        kind = "mbarrier init" if initialises(before) and not initialises(access.instruction) else "race"
        self.add(kind, access.instruction, before, message)

    def add_unseen(
        self, machine: Machine, access: Access, other: int, thread: int, other_thread: int, byte: int
    ) -> None:
        """As `add_race`, of a read in the async proxy, which no proxy fence lets see what was written."""
        before, writer = self.instruction(other), self.name(machine, other_thread)
        message = (
            f"{machine.batch.describe(thread)} does {access.instruction.text}, which reads {where(access, byte)} "
            f"in the async proxy, where {writer} has done {before.text} ({before.place}), and "
            "no fence.proxy.async is between them"
        )
        self.add("proxy", access.instruction, before, message)

    def add_unseen_object(
        self, machine: Machine, instruction: Instruction, thread: int, place: int, made: Initialised
    ) -> None:
        """Of a copy that is to tell an mbarrier object, at that byte of shared memory."""
        message = (
            f"{machine.batch.describe(thread)} does {instruction.text}, which tells in the async proxy the mbarrier "
            f"object at shared memory byte {place}, where {self.name(machine, made.number)} has done "
            f"{made.instruction.text} ({made.instruction.place}), and neither fence.mbarrier_init nor "
            "fence.proxy.async is between them"
        )
        self.add("mbarrier init", instruction, made.instruction, message)

    def add_accumulator(self, machine: Machine, instruction: Instruction, product: Instruction, thread: int) -> None:
        message = (
            f"{machine.batch.describe(thread)} does {instruction.text}, which uses accumulators of {product.text} "
            f"({product.place}), and has not waited for it"
        )
        self.add("accumulator", instruction, product, message)

    def name(self, machine: Machine, number: int) -> str:
        """Of a thread, by its number among all of them."""
        thread = self._clocks.thread(number)
        return "a thread of an earlier block" if thread is None else machine.batch.describe(thread)


def initialises(instruction: Instruction) -> bool:
    """An mbarrier object?"""
    return instruction.opcode == "mbarrier" and instruction.modifiers[0] == "init"


def where(access: Access, byte: int) -> str:
    """byte: of the buffer."""
    byte -= access.start
    return f"{access.allocation!r} byte {byte}" if access.space == "global" else f"shared memory byte {byte}"

"""What the simulator says when it cannot go on, or when a kernel does what a GPU would not forgive."""

from __future__ import annotations

from simulators.gpu.ptx.module import Instruction, Place


class SimulatorError(Exception):
    """Anything that is wrong with a PTX text, a launch or a running kernel. The message says what and where."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message if place is None else f"{place}: {message}")
        self.place = place


class PtxSyntaxError(SimulatorError):
    """A PTX text that does not follow its grammar, or names what it does not declare."""


class UnsupportedInstruction(SimulatorError):
    """An instruction, a modifier or an operand form that the simulator does not know."""

    def __init__(self, instruction: Instruction, why: str = "") -> None:
        reason = f" ({why})" if why else ""
        super().__init__(
            f"instruction {instruction.name} is not supported{reason}: {instruction.text}", instruction.place
        )
        self.instruction = instruction

"""What is told to those who watch a launch: checks and counters. Nothing is told where nobody watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.memory.buffer import Buffer, Indices
from simulators.gpu.ptx.module import Instruction, Place

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

Kind = Literal["read", "write", "update"]
Order = Literal["weak", "relaxed", "acquire", "release", "acq_rel"]
Scope = Literal["cta", "cluster", "gpu", "sys"]
SCOPES: tuple[Scope, ...] = ("cta", "cluster", "gpu", "sys")  # each holds those before it


@dataclass(frozen=True)
class Access:
    """One instruction's access to memory by many threads. An update reads and writes at once: an atomic."""

    instruction: Instruction
    kind: Kind
    threads: NDArray[np.intp]
    space: str
    allocation: str  # its name
    start: int  # the offset of its first byte in the buffer
    buffer: Buffer
    offsets: Indices  # bytes into the buffer, one a thread
    size: int  # bytes of each thread's access
    order: Order = "weak"
    scope: Scope = "gpu"
    values: Sequence[NDArray[np.generic]] = ()  # what was written
    is_asynchronous: bool = False  # done by a copy engine after the instruction
    written: NDArray[np.bool_] | None = None  # by byte of the buffer: what held a value before; None: all did


@dataclass(frozen=True)
class Finding:
    """Something that a kernel must not do, though its result may be right."""

    kind: str  # "race", "uninitialised", ...
    message: str
    place: Place

    def __str__(self) -> str:
        return f"{self.kind}: {self.message} at {self.place}"


class Watcher:
    """Told of everything, and free to ignore it."""

    def findings(self) -> Sequence[Finding]:
        """What was found, when the launch has ended."""
        return ()

    def begin(self, machine: Machine) -> None:
        """Blocks have become resident, and nothing has run."""

    def extend(self, machine: Machine) -> None:
        """More blocks have become resident beside those that run."""

    def end(self, machine: Machine) -> None:
        """All resident blocks have ended."""

    def executed(self, machine: Machine, first: int, end: int, threads: Threads) -> None:
        """Instructions first .. end are about to be executed by these threads, guards apart."""

    def diverged(self, machine: Machine, instruction: Instruction, taken: Threads, rest: Threads) -> None:
        """A branch has split a group."""

    def access(self, machine: Machine, access: Access) -> None:
        """Memory is about to be accessed."""

    def fence(self, machine: Machine, threads: Threads, order: Order, scope: Scope) -> None:
        """A fence (of thread scope or wider) has been passed."""

    def synchronized(self, machine: Machine, sets: NDArray[np.intp]) -> None:
        """[sets, threads], each set of one block: within each, what any thread did before is seen by all after."""

    def gathered(self, machine: Machine, arrived: NDArray[np.intp], waited: NDArray[np.intp]) -> None:
        """Threads of one block have completed a barrier. Some of them have waited there, and see what all did."""

    def arrived(
        self, machine: Machine, threads: NDArray[np.intp], key: tuple[object, ...], *, is_relaxed: bool = False
    ) -> None:
        """Threads have arrived at something that others wait for: what they did before is released to it. is_relaxed:
        only what they did before their latest fence."""

    def waited(self, machine: Machine, threads: NDArray[np.intp], key: tuple[object, ...]) -> None:
        """Threads have waited for what others arrived at: they acquire what was released to it."""

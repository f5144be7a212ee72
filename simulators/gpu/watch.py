"""What is told to those who watch a launch: checks and counters. Nothing is told where nobody watches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

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
Engine = Literal["cp.async", "bulk", "st.async", "wgmma"]  # what does asynchronous operations
Fenced = Literal["shared", "global", "mbarrier"]  # what a proxy fence is for: memory, or new mbarrier objects
Key = tuple[Hashable, ...]  # of what is released


@dataclass(frozen=True)
class Completion:
    """How an asynchronous access is known to be done."""

    engine: Engine
    key: Key | None = None  # done before this is passed on; None: its threads wait for it by group


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
    values: Sequence[NDArray[np.generic]] = ()  # what was written; by an engine: equal if the same was
    completion: Completion | None = None  # of what an engine does after the instruction; None: done by it
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

    follows_engines: ClassVar[bool] = False  # finds what is written before an engine has read it, so no error need be

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

    def arrived(self, machine: Machine, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        """Threads have arrived at something that others wait for: what they did before is released to it. is_relaxed:
        only what they did before their latest fence."""

    def waited(self, machine: Machine, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        """Threads have waited for what others arrived at: they acquire what was released to it. is_relaxed: at their
        next fence."""

    # -- asynchronous operations: their accesses are told when they are asked for, each with its completion -----------

    def committed(self, machine: Machine, threads: NDArray[np.intp], engine: Engine) -> None:
        """Threads have made a group of what they asked an engine for since their last one."""

    def completed(
        self,
        machine: Machine,
        threads: NDArray[np.intp],
        engine: Engine,
        newest: int,
        *,
        reads_alone: bool = False,
    ) -> None:
        """Threads have waited until all but their newest groups, so many, were done, or had read what they read."""

    def promised(
        self, machine: Machine, instruction: Instruction, threads: NDArray[np.intp], key: Key, engine: Engine
    ) -> None:
        """Threads have asked an engine for what will be released to an mbarrier object when it is done, as is all that
        they did before. Of cp.async: that is all that they have asked it for. The key ends in the object's place in
        shared memory, a byte of the buffer; accesses follow that have it as their completion."""

    def passed_on(self, machine: Machine, key: Key, to: Key) -> None:
        """What was promised under one key is done, and released to another."""

    def multiplied(
        self, machine: Machine, instruction: Instruction, threads: NDArray[np.intp], registers: frozenset[str]
    ) -> None:
        """Threads have asked wgmma for a product, whose accumulators these registers are."""

    def proxy_fence(self, machine: Machine, threads: Threads, fenced: Sequence[Fenced]) -> None:
        """What these threads know of, done in the generic proxy, can be seen in the async one by what comes after."""

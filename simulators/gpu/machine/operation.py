"""A decoded instruction: what is done when a set of threads comes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulators.gpu.batch import Threads
from simulators.gpu.ptx.module import Instruction

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

Run = Callable[["Machine", Threads], None]
# Of an instruction at which threads wait for others: returns those that go on at once. It keeps the rest, and hands
# them back to the machine when they may go on.
Meet = Callable[["Machine", Threads], Threads]


@dataclass(frozen=True)
class Straight:
    """Done at once by whoever comes."""

    instruction: Instruction
    run: Run
    polls: bool = False  # may tell a thread of what another did: a loop around it may be a wait


@dataclass(frozen=True)
class Meeting:
    """Threads wait for others here."""

    instruction: Instruction
    meet: Meet


@dataclass(frozen=True)
class Branch:
    """Some go elsewhere."""

    instruction: Instruction
    target: int


@dataclass(frozen=True)
class IndexedBranch:
    """`brx.idx`: each goes where its index says."""

    instruction: Instruction
    index: Callable[[Machine, Threads], object]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Exit:
    """The threads end."""

    instruction: Instruction


Operation = Straight | Meeting | Branch | IndexedBranch | Exit

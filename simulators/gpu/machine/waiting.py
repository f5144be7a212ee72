"""Who waits for what, and what is said when nobody can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import SimulatorError

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

_NAMED = 3  # threads, at most, in one sentence


class Deadlock(SimulatorError):
    """Every thread that is left waits. The message has one line for each thing that is waited for."""


class Rendezvous(Protocol):
    """Threads that wait at something that is no instruction alone, such as a block's barrier."""

    def exited(self, machine: Machine) -> None:
        """Threads have ended: whoever waits for them waits for fewer."""

    def waits(self, machine: Machine) -> Iterator[str]:
        """Who waits for what, a line each."""


def describe_waits(machine: Machine, polling: Mapping[int, list[Threads]], parked: Mapping[int, list[Threads]]) -> str:
    """All lines."""
    lines = []
    for pc, parts in sorted(polling.items()):
        threads = machine.batch.numbers(machine.batch.union(parts))
        looks = _seen(machine, threads) or [f"at {_place(machine, pc)}"]
        lines.append(f"{name_threads(machine, threads)} poll " + " and ".join(looks))
    for pc, parts in sorted(parked.items()):
        threads = machine.batch.numbers(machine.batch.union(parts))
        missing = _missing_lanes(machine, threads)
        others = f" for {name_threads(machine, missing)}, which do not come" if len(missing) else ""
        lines.append(f"{name_threads(machine, threads)} wait{others} at {_place(machine, pc)}")
    for rendezvous in machine.state.values():
        lines += list(rendezvous.waits(machine))
    if machine.blocks.num_left:
        lines.append(
            f"{machine.blocks.num_left} blocks have not begun: the chip has no room for them beside those that wait"
        )
    return "deadlock: every thread waits\n" + "\n".join(f"  {line}" for line in lines)


def name_threads(machine: Machine, threads: NDArray[np.intp]) -> str:
    """How many they are, and who the first ones are."""
    first = ", ".join(machine.batch.describe(int(thread)) for thread in threads[:_NAMED])
    more = ", ..." if len(threads) > _NAMED else ""
    return f"{len(threads)} thread{'s' if len(threads) != 1 else ''} ({first}{more})"


def _place(machine: Machine, pc: int) -> str:
    instruction = machine.program.operations[pc].instruction
    return f"{instruction.place}: {instruction.text}"


def _missing_lanes(machine: Machine, threads: NDArray[np.intp]) -> NDArray[np.intp]:
    """Living threads of the same warps that are not among them."""
    batch = machine.batch
    member = np.isin(batch.warp, batch.warp[threads]) & batch.alive
    member[threads] = False
    return np.flatnonzero(member)


def _seen(machine: Machine, threads: NDArray[np.intp]) -> list[str]:
    """What polling threads looked at last, and where."""
    looks = []
    for access in machine.polled.values():
        which = np.flatnonzero(np.isin(access.threads, threads))
        if len(which):
            offset = int(access.offsets[which[0]])
            found = access.buffer.view(access.size)[offset // access.size] if access.size <= 8 else None
            value = "" if found is None else f", which holds {int(found)}"
            byte = f"byte {offset - access.start}"
            looks.append(
                f"{access.allocation!r} ({byte}{value}) at {access.instruction.place}: {access.instruction.text}"
            )
    return looks

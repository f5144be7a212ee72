"""Reads of memory that nobody has written: shared and local memory, and global memory that was said to hold nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulators.gpu.memory.buffer import are_marked
from simulators.gpu.watch import Access, Finding, Watcher

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine


class UninitialisedReads(Watcher):
    """One finding for each instruction that reads what holds nothing."""

    def __init__(self) -> None:
        self._found: dict[int, Finding] = {}  # by the instruction's id, as long as its program is held

    def access(self, machine: Machine, access: Access) -> None:
        if access.kind == "write" or access.written is None:
            return
        holds = are_marked(access.written, access.offsets, access.size)
        if holds.all() or id(access.instruction) in self._found:
            return
        first = int(np.flatnonzero(~holds)[0])
        count = int(np.count_nonzero(~holds))
        byte = int(access.offsets[first]) - access.start
        where = f"byte {byte} of {access.allocation!r}" if access.space == "global" else f"{access.space} memory"
        who = machine.batch.describe(int(access.threads[first]))
        more = f", and {count - 1} other threads" if count > 1 else ""
        message = (
            f"{who} reads {access.size} bytes of {where}, which nobody has written{more}: {access.instruction.text}"
        )
        self._found[id(access.instruction)] = Finding("uninitialised read", message, access.instruction.place)

    def findings(self) -> Sequence[Finding]:
        return tuple(self._found.values())

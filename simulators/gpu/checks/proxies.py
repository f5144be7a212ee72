"""What the async proxy may not see: writes of threads that no proxy fence has passed on to it.

Bulk copies and wgmma work in the async proxy, threads in the generic one. What a thread has written is seen by a later
read in the async proxy if a `fence.proxy.async` stands between them, on the way that orders them: with who writes, with
who asks for the read, or with another. An mbarrier object that a copy is to tell needs that, or `fence.mbarrier_init`,
after its `mbarrier.init`. No fence is asked for after `cp.async`, nor before a write in the async proxy: kernels of
libraries have none there, and run.
Source: PTX ISA, "Async proxy", "Memory Consistency Model: Proxy-preserved Base Causality Order".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.checks.clocks import Clocks
from simulators.gpu.checks.shadow import Marks
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Access, Fenced


@dataclass(frozen=True)
class Initialised:
    """An mbarrier object by a thread."""

    instruction: Instruction
    number: int
    time: int


class Proxies:
    """Of all memory and all mbarrier objects."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._objects: dict[int, Initialised] = {}  # by place in shared memory

    def begin(self) -> None:
        """New blocks, and none before."""
        self._objects = {}

    def initialise(self, access: Access, times: NDArray[np.int32]) -> None:
        """Threads have initialised mbarrier objects."""
        numbers = self._clocks.numbers(access.threads)
        for place, number, time in zip(access.offsets.tolist(), numbers.tolist(), times.tolist(), strict=True):
            self._objects[place] = Initialised(access.instruction, number, time)

    def unseen_object(self, place: int, threads: NDArray[np.intp]) -> Initialised | None:
        """The object there, if the async proxy of some of these threads does not see it."""
        made = self._objects.get(place)
        if made is None:
            return None
        known = self._clocks.knows_fenced(threads, np.full(len(threads), made.number), "mbarrier")
        return made if (known < made.time).any() else None

    def unseen(self, threads: NDArray[np.intp], written: Marks, fenced: Fenced) -> NDArray[np.bool_]:
        """Of writes that are known to reads of these threads, pair by pair: which does the async proxy not see?"""
        layout = self._clocks.layout
        result = written.exist & (written.threads % layout.span < layout.threads)
        which = np.flatnonzero(result)
        if len(which):
            others = written.threads[which]
            is_known = others == self._clocks.numbers(threads[which])
            is_known |= written.times[which] <= self._clocks.knows(threads[which], others)
            seen = self._clocks.knows_fenced(threads[which], others, fenced)
            result[which] = is_known & (written.times[which] > seen)
        return result

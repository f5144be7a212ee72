"""Which threads run next.

A GPU promises little about order, so any choice here is one that a kernel must bear. `LowestFirst` is the quick one.
`Adversarial` picks at random, by seed: any group, any part of it (whole blocks, whole warps, or single threads), for
any number of instructions up to the next label.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from simulators.gpu.batch import Threads

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

Groups = MutableMapping[int, list[Threads]]  # by the pc at which they stand


class Schedule(Protocol):
    """Chooses among groups that may run."""

    def choose(self, machine: Machine, groups: Groups) -> tuple[int, Threads]:
        """Take one, or a part of one, out of the groups, of which there is at least one."""

    def gives_way(self, machine: Machine, pc: int, groups: Groups) -> bool:
        """Does the group that runs, and has come to a label or passed a meeting, stop for the others?"""

    def hurries(self) -> bool:
        """Is a copy that is asked for now done now, or not before something waits for it?"""


class LowestFirst:
    """Whoever is furthest behind: threads that parted meet again as soon as may be."""

    def choose(self, machine: Machine, groups: Groups) -> tuple[int, Threads]:
        pc = min(groups)
        return pc, machine.batch.union(groups.pop(pc))

    def gives_way(self, machine: Machine, pc: int, groups: Groups) -> bool:
        return min(groups) <= pc

    def hurries(self) -> bool:
        return False


class Adversarial:
    """Random, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def choose(self, machine: Machine, groups: Groups) -> tuple[int, Threads]:
        random, batch = self._random, machine.batch
        pc = list(groups)[int(random.integers(len(groups)))]
        threads = batch.union(groups.pop(pc))
        unit = (batch.slot, batch.warp, None)[int(random.choice(3, p=(0.5, 0.4, 0.1)))]
        numbers = batch.numbers(threads)
        keys = numbers if unit is None else unit[numbers]
        units = np.unique(keys)
        if len(units) == 1:
            return pc, threads
        chosen = units[random.random(len(units)) < random.random()]
        runs = np.isin(keys, chosen if len(chosen) else units[:1])
        if runs.all():
            return pc, threads
        groups[pc] = [numbers[~runs]]
        return pc, numbers[runs]

    def gives_way(self, machine: Machine, pc: int, groups: Groups) -> bool:
        return bool(self._random.random() < 0.5)

    def hurries(self) -> bool:
        return bool(self._random.random() < 0.5)

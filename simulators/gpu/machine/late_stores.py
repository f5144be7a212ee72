"""Stores to global memory that become visible late: what a hostile schedule makes of every store that is no release.

A block's stores are held back, in their order, and are seen by other blocks only when the schedule lets them out, when
a thread of the block passes a fence or a release that reaches beyond it, or when the launch ends. The block itself sees
its stores at once. A store of one block may therefore be seen before an earlier one of another block, and a flag that
is set without a release before the data that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.memory.buffer import Buffer


@dataclass
class _Held:
    """One instruction's stores by threads of one block."""

    buffer: Buffer
    offsets: NDArray[np.intp]
    values: tuple[NDArray[np.generic], ...]
    width: int


class LateStores:
    """Of all resident blocks."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._held: dict[int, list[_Held]] = {}  # by slot, oldest first

    def hold(
        self,
        slots: NDArray[np.int32],
        buffer: Buffer,
        offsets: NDArray[np.intp],
        values: Sequence[NDArray[np.generic]],
        width: int,
    ) -> None:
        """slots: of each thread. values: arrays [N], or scalars."""
        whole = [np.broadcast_to(value, offsets.shape) for value in values]
        for slot in np.unique(slots):
            mine = slots == slot
            one = _Held(buffer, offsets[mine], tuple(value[mine] for value in whole), width)
            self._held.setdefault(int(slot), []).append(one)

    def let_out(self, slots: NDArray[np.int32] | Sequence[int]) -> bool:
        """Everything of these blocks is visible from now on. Returns whether there was anything."""
        some = False
        for slot in np.unique(slots):
            for one in self._held.pop(int(slot), []):
                one.buffer.scatter(one.offsets, one.values, one.width)
                some = True
        return some

    def let_out_all(self) -> bool:
        return self.let_out(list(self._held))

    def let_out_some(self) -> bool:
        """A random block's oldest stores, or nothing."""
        if not self._held or self._random.random() < 0.7:
            return False
        slot = list(self._held)[int(self._random.integers(len(self._held)))]
        held = self._held[slot]
        one = held.pop(0)
        one.buffer.scatter(one.offsets, one.values, one.width)
        if not held:
            del self._held[slot]
        return True

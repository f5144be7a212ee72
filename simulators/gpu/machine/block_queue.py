"""The blocks of a launch that have not begun, and how many of them may be resident together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.launch import Launch

BATCH_THREADS = 1 << 14  # that run together where nothing asks for more: their registers stay in the CPU's cache


class BlockQueue:
    """Blocks leave it in order, whole clusters at a time. They are numbers in the grid, x fastest."""

    def __init__(self, launch: Launch, resident_blocks: int) -> None:
        """resident_blocks: that the chip holds at once."""
        self._launch = launch
        self._resident_blocks = resident_blocks
        self._num_started = 0

    @property
    def num_left(self) -> int:
        return self._launch.num_blocks - self._num_started

    def first(self) -> NDArray[np.int64]:
        """Those that begin when none is resident: as many as run well together, or all of a cooperative launch."""
        if self._launch.is_cooperative:
            return self._take(self.num_left)
        of_cluster = self._launch.cluster_blocks
        wanted = max(1, BATCH_THREADS // (self._launch.block_threads * of_cluster)) * of_cluster
        return self._take(min(self.num_left, wanted, self._resident_blocks))

    def more(self, *, beside: int) -> NDArray[np.int64]:
        """All that the chip has room for beside so many blocks: maybe none."""
        of_cluster = self._launch.cluster_blocks
        room = min(self.num_left, self._resident_blocks - beside)
        return self._take(max(room // of_cluster, 0) * of_cluster)

    def _take(self, count: int) -> NDArray[np.int64]:
        numbers = np.arange(self._num_started, self._num_started + count)
        self._num_started += count
        return numbers if self._launch.cluster_blocks == 1 else _by_cluster(self._launch, numbers)


def _by_cluster(launch: Launch, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The blocks at these places of a row in which cluster comes after cluster, and each one's blocks by rank."""
    cx, cy, cz = launch.cluster
    gx, gy, _ = launch.grid
    rank, cluster = places % (cx * cy * cz), places // (cx * cy * cz)
    x = cluster % (gx // cx) * cx + rank % cx
    y = cluster // (gx // cx) % (gy // cy) * cy + rank // cx % cy
    z = cluster // (gx // cx * (gy // cy)) * cz + rank // (cx * cy)
    return x + gx * (y + gy * z)

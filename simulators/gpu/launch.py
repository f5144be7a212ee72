"""What is asked of a GPU: one kernel, over a grid of blocks."""

from __future__ import annotations

from dataclasses import dataclass

Extent = tuple[int, int, int]  # x, y, z


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel."""

    kernel: str  # the name of an `.entry`
    grid: Extent  # blocks
    block: Extent  # threads of each
    parameters: bytes  # laid out as the kernel's `.param` block is
    shared_bytes: int = 0  # dynamic shared memory of each block
    cluster: Extent = (1, 1, 1)  # blocks of each
    is_cooperative: bool = False  # all blocks must be resident at once

    @property
    def num_blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def block_threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_blocks(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

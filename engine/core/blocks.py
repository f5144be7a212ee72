"""KV blocks: which are free, which are cached, and how many tables hold each. Mechanism; it decides nothing.

    held      references > 0
    cached    references = 0, and still named by a hash: reusable until it is taken, least recently held first
    free      references = 0, and without a hash

Every operation takes constant time. The rules are those of `reference/serving/paging.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Blocks 0 to num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_idle(self) -> int:
        """Blocks that can be taken: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def free(self) -> list[int]:
        return list(self._free)

    @property
    def cached(self) -> list[int]:
        return list(self._cached)

    @property
    def usage(self) -> float:
        """The share of blocks that are held."""
        return 1 - self.num_idle / self.num_blocks

    def find(self, block_hash: bytes) -> int | None:
        """The block that stores what this hash names."""
        return self._block_of.get(block_hash)

    def store(self, block: int, block_hash: bytes) -> None:
        """Name what a held block stores. If another block stores the same, that one stays the named one."""
        if self._block_of.setdefault(block_hash, block) == block:
            self._hash_of[block] = block_hash

    def hold(self, block: int) -> None:
        """One more table holds a stored block."""
        if not self.references[block]:
            del self._cached[block]
        self.references[block] += 1

    def take(self) -> int:
        """A block for a new owner: a free one, else the cached one that was held least recently, which is forgotten.

        There must be an idle one.
        """
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._hash_of.pop(block)]
        self.references[block] = 1
        return block

    def release(self, table: Sequence[int]) -> None:
        """A table is given up, its last block first: of a cached sequence, the end is taken before the beginning."""
        for block in reversed(table):
            self.references[block] -= 1
            assert self.references[block] >= 0, f"block {block} was released more often than it was held"
            if self.references[block]:
                continue
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def num_idle_of(self, blocks: Sequence[int]) -> int:
        """How many of these are idle."""
        return sum(not self.references[block] for block in blocks)

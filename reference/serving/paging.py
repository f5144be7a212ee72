"""KV memory in blocks of a few tokens: who holds which block, and which one is given away next.

    every block is    held, by one table or by several that begin alike       (its holders read it)
                or    idle, and stored: reusable until it is given away       (the prefix cache)
                or    idle, and holds nothing of use                          (free)

Blocks are conserved: those three are all blocks, and none is two of them. An idle block is taken in this order: free
ones, then the stored ones, least recently held first; of one sequence, its end before its beginning.
Source: vLLM, arXiv:2309.06180; SGLang's prefix reuse, arXiv:2312.07104.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from reference.serving.prefix import reusable_blocks


class Paging:
    """The plainest bookkeeping: lists that are searched, and whole sequences as names of what a block stores."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables: dict[Hashable, list[int]] = {}  # the blocks that a sample holds, in the order of its tokens
        self.offered: dict[Hashable, int] = {}  # how many blocks of a table were offered to the prefix cache
        self.stored: dict[tuple[int, ...], int] = {}  # the sequence up to a full block's end -> that block
        self.idle = list(range(num_blocks))  # in the order they will be taken

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def reusable(self, token_ids: Sequence[int]) -> list[int]:
        """Blocks that hold the beginning of a sequence."""
        return [self.stored[upto] for upto in reusable_blocks(self.stored, token_ids, self.block_size)]

    def fits(self, reused: Sequence[int], num_tokens: int) -> bool:
        """Can a table of that many tokens begin with these blocks, and get the rest?"""
        needed = self.blocks_for(num_tokens) - len(reused)
        return needed <= len([block for block in self.idle if block not in reused])

    def hold(self, name: Hashable, reused: Sequence[int], num_tokens: int) -> None:
        """Begin a table with reused blocks, and grow it. Needs `fits`."""
        self.idle = [block for block in self.idle if block not in reused]
        self.tables[name] = list(reused)
        self.offered[name] = len(reused)
        self.grow(name, num_tokens)

    def can_grow(self, name: Hashable, num_tokens: int) -> bool:
        return self.blocks_for(num_tokens) - len(self.tables[name]) <= len(self.idle)

    def grow(self, name: Hashable, num_tokens: int) -> None:
        """Let a table reach that many tokens. Needs `can_grow`."""
        while len(self.tables[name]) < self.blocks_for(num_tokens):
            block = self.idle.pop(0)
            self.stored = {upto: other for upto, other in self.stored.items() if other != block}
            self.tables[name].append(block)

    def store(self, name: Hashable, computed_token_ids: Sequence[int]) -> None:
        """Keep a sample's blocks for others, each once, when it is full. If another block stores the same by then, that
        one goes on to."""
        num_full = len(computed_token_ids) // self.block_size
        for number in range(self.offered[name], num_full):
            end = (number + 1) * self.block_size
            self.stored.setdefault(tuple(computed_token_ids[:end]), self.tables[name][number])
        self.offered[name] = max(self.offered[name], num_full)

    def release(self, name: Hashable) -> None:
        """Give a table's blocks up. Those that another table holds stay with it; those that are stored stay so."""
        for block in reversed(self.tables.pop(name)):
            if any(block in table for table in self.tables.values()):
                continue
            if block in self.stored.values():
                self.idle.append(block)
            else:
                self.idle.insert(0, block)


def conservation_errors(
    num_blocks: int,
    free: Sequence[int],  # hold nothing of use
    cached: Sequence[int],  # reusable, held by nobody
    tables: Sequence[Sequence[int]],  # of every sample that holds blocks
    references: Sequence[int],  # [num_blocks] what a pool believes of the number of tables that hold a block
) -> list[str]:
    """What is wrong with a pool of blocks: nothing, if blocks are conserved and counted rightly."""
    counts = [0] * num_blocks
    for table in tables:
        for block in table:
            counts[block] += 1
    held = [block for block in range(num_blocks) if counts[block]]
    errors = []
    if sorted([*free, *cached, *held]) != list(range(num_blocks)):
        errors.append(f"free {sorted(free)}, cached {sorted(cached)} and held {held} are not all {num_blocks} blocks")
    errors += [
        f"block {block} is in {counts[block]} tables, and counted {references[block]} times"
        for block in range(num_blocks)
        if counts[block] != references[block]
    ]
    errors += [f"a table holds a block twice: {list(table)}" for table in tables if len(set(table)) != len(table)]
    return errors

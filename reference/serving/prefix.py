"""What of a sequence need not be computed again, because its keys and values are still in memory.

A key depends on all tokens before it, so a block can be reused only where the whole sequence up to the block's end is
the same. Blocks are reused whole, from the beginning, without a gap. At least one token is computed: its logits are
what is asked for.
"""

from __future__ import annotations

from collections.abc import Container, Sequence


def reusable_blocks(
    stored: Container[tuple[int, ...]],  # for each full block in memory, the sequence up to the block's end
    token_ids: Sequence[int],
    block_size: int,
) -> list[tuple[int, ...]]:
    """The stored blocks that a sequence begins with, in order."""
    found: list[tuple[int, ...]] = []
    for end in range(block_size, len(token_ids), block_size):
        upto = tuple(token_ids[:end])
        if upto not in stored:
            break
        found.append(upto)
    return found

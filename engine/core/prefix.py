"""Names of what a full block stores: a chain of hashes, so that equal names mean equal sequences up to the block's end.

A hash is over the hash of the block before and the block's own token ids: blake2b with 128 bits. Two sequences that
meet by accident would share wrong keys; at 2^40 blocks the odds of that are 2^-49. (Python's own hash has 64 bits and
is not made to resist someone who looks for such a pair.)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b


def extend_hashes(hashes: list[bytes], token_ids: Sequence[int], block_size: int, num_tokens: int) -> None:
    """Let `hashes`, of the first full blocks of a sequence, reach all full blocks of its first `num_tokens`."""
    parent = hashes[-1] if hashes else b""
    for begin in range(len(hashes) * block_size, num_tokens - block_size + 1, block_size):
        block = array("i", token_ids[begin : begin + block_size]).tobytes()
        parent = blake2b(parent + block, digest_size=16).digest()
        hashes.append(parent)

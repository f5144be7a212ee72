"""Which blocks of a sequence need not be computed again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reference.serving.prefix import reusable_blocks

STORED = {(1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6), (7, 8, 9, 9)}


def reused(*token_ids: int) -> int:
    """How many tokens."""
    found = reusable_blocks(STORED, token_ids, 2)
    return len(found[-1]) if found else 0


def test_whole_blocks_from_the_beginning_without_a_gap() -> None:
    assert reused(1, 2, 3, 4, 5, 6, 0) == 6
    assert reused(1, 2, 3, 4, 0, 6, 0) == 4
    assert reused(1, 2, 3, 0, 5, 6, 0) == 2, "half a block is not reused"
    assert reused(0, 2, 3, 4, 5, 6, 0) == 0
    assert reused(7, 8, 9, 9, 0) == 0, "the first block is gone, so the second is of no use"


def test_the_same_tokens_after_others_are_another_block() -> None:
    assert reused(1, 2, 1, 2, 0) == 2
    assert reused(3, 4, 0) == 0


def test_one_token_at_least_is_computed() -> None:
    assert reused(1, 2, 3, 4, 5, 6) == 4, "the last block is stored, and computed again for its last token"
    assert reused(1, 2) == 0
    assert reused(1, 2, 3) == 2
    assert reused(1) == 0


TOKENS = st.lists(st.integers(0, 1), max_size=8).map(tuple)


@given(st.sets(TOKENS, max_size=6), TOKENS, st.integers(1, 3))
def test_what_is_found_is_stored_begins_the_sequence_and_leaves_a_token(
    stored: set[tuple[int, ...]], token_ids: tuple[int, ...], block_size: int
) -> None:
    found = reusable_blocks(stored, token_ids, block_size)
    assert [len(upto) for upto in found] == [block_size * (i + 1) for i in range(len(found))]
    assert all(upto in stored and token_ids[: len(upto)] == upto for upto in found)
    assert len(found) * block_size < max(1, len(token_ids))
    # No more was to be had.
    after = token_ids[: (len(found) + 1) * block_size]
    assert after not in stored or len(after) == len(token_ids) or len(after) % block_size

"""Names of blocks: equal if and only if the sequences up to the block's end are; and found without a search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.blocks import BlockPool
from engine.core.prefix import extend_hashes
from engine.core.scheduler import Scheduler
from engine.core.settings import EngineSettings
from reference.serving.prefix import reusable_blocks
from tests.engine.core.sequences import sequence_of

TOKENS = st.lists(st.integers(0, 2) | st.sampled_from([256, 65536, 151_935, 2**31 - 1]), max_size=12)


def chain(token_ids: list[int], block_size: int) -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, token_ids, block_size, len(token_ids))
    return hashes


@given(TOKENS, TOKENS, st.integers(0, 12), st.integers(1, 4))
def test_names_are_equal_where_all_up_to_the_blocks_end_is(
    ours: list[int], theirs: list[int], shared: int, block_size: int
) -> None:
    theirs = ours[:shared] + theirs
    for number, (one, other) in enumerate(zip(chain(ours, block_size), chain(theirs, block_size), strict=False)):
        end = (number + 1) * block_size
        assert (one == other) == (ours[:end] == theirs[:end])


@given(TOKENS, st.integers(1, 4))
def test_names_within_a_sequence_differ_and_each_full_block_has_one(token_ids: list[int], block_size: int) -> None:
    hashes = chain(token_ids, block_size)
    assert len(set(hashes)) == len(hashes) == len(token_ids) // block_size


@given(TOKENS, st.lists(st.integers(0, 12), max_size=4), st.integers(1, 4))
def test_a_chain_that_grows_is_the_chain_of_the_whole(token_ids: list[int], stops: list[int], block_size: int) -> None:
    hashes: list[bytes] = []
    for stop in sorted(stops):
        known = token_ids[:stop]
        extend_hashes(hashes, known, block_size, len(known))
        assert hashes == chain(known, block_size)


def test_token_ids_do_not_run_together() -> None:
    """What a name made of digits or of bytes would mix up."""
    assert chain([1, 23], 2) != chain([12, 3], 2)
    assert chain([0, 256], 2) != chain([256, 0], 2)
    assert chain([1, 1, 2, 2], 2)[1] != chain([1, 1, 2, 2], 4)[0]


class CountingPool(BlockPool):
    """Counts what is asked of it."""

    asked = 0

    def find(self, block_hash: bytes) -> int | None:
        self.asked += 1
        return super().find(block_hash)


def stored(pool: BlockPool, token_ids: list[int], block_size: int) -> None:
    for block_hash in chain(token_ids, block_size):
        pool.store(pool.take(), block_hash)


@given(st.lists(TOKENS, max_size=4), TOKENS.filter(len), st.integers(0, 12), st.integers(1, 3))
def test_a_lookup_finds_what_is_specified(
    cached: list[list[int]], ours: list[int], shared: int, block_size: int
) -> None:
    pool = CountingPool(64)
    cached.append(ours[:shared])
    for token_ids in cached:
        stored(pool, token_ids, block_size)
    names = {tuple(ids[:end]) for ids in cached for end in range(block_size, len(ids) + 1, block_size)}
    scheduler = Scheduler(EngineSettings(), pool, block_size)
    blocks = scheduler._reusable(sequence_of(ours))
    upto = reusable_blocks(names, ours, block_size)
    assert blocks == [pool.find(chain(list(ids), block_size)[-1]) for ids in upto]
    assert len(blocks) * block_size < len(ours), "one token at least is computed"


def test_a_hundred_thousand_cached_blocks_do_not_slow_a_lookup() -> None:
    """The work is counted, not timed: one question a block that is found, and one for that which is not."""
    pool = CountingPool(100_008)
    for number in range(100_000):
        pool.store(pool.take(), b"other %d" % number)
    trunk = list(range(64))
    stored(pool, trunk, 8)
    pool.release(range(100_008))
    scheduler = Scheduler(EngineSettings(), pool, 8)
    for length, found in ((8 * 5, 5), (8 * 8, 8), (0, 0)):
        pool.asked = 0
        blocks = scheduler._reusable(sequence_of([*trunk[:length], *[999] * 40]))
        assert len(blocks) == found
        assert pool.asked == found + 1

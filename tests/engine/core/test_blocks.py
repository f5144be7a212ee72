"""The block pool against the specified paging: under any operations the same blocks, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.blocks import BlockPool
from engine.core.prefix import extend_hashes
from reference.serving.paging import Paging, conservation_errors

BLOCK_SIZE = 2


class Both(RuleBasedStateMachine):
    """Tables of token sequences, held in the pool by the steps that the scheduler takes, and in `Paging` by its own."""

    @initialize(num_blocks=st.integers(1, 8))
    def begin(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.paging = Paging(num_blocks, BLOCK_SIZE)
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}
        self.num_begun = 0

    def hashes(self, tokens: Sequence[int]) -> list[bytes]:
        hashes: list[bytes] = []
        extend_hashes(hashes, tokens, BLOCK_SIZE, len(tokens))
        return hashes

    def reused_blocks(self, tokens: Sequence[int]) -> list[int]:
        found: list[int] = []
        for block_hash in self.hashes(tokens)[: (len(tokens) - 1) // BLOCK_SIZE]:
            block = self.pool.find(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def admit(self, tokens: list[int]) -> None:
        reused = self.reused_blocks(tokens)
        assert reused == self.paging.reusable(tokens)
        num_new = -(-len(tokens) // BLOCK_SIZE) - len(reused)
        fits = num_new <= self.pool.num_idle - self.pool.num_idle_of(reused)
        assert fits == self.paging.fits(reused, len(tokens))
        if not fits:
            return
        name = self.num_begun = self.num_begun + 1
        for block in reused:
            self.pool.hold(block)
        self.tables[name] = reused + [self.pool.take() for _ in range(num_new)]
        self.paging.hold(name, reused, len(tokens))
        self.tokens[name] = list(tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.tables)))
        lacks = len(self.tokens[name]) + 1 > len(self.tables[name]) * BLOCK_SIZE
        assert (not lacks or self.pool.num_idle > 0) == self.paging.can_grow(name, len(self.tokens[name]) + 1)
        if lacks and not self.pool.num_idle:
            return
        self.tokens[name].append(token)
        if lacks:
            self.tables[name].append(self.pool.take())
        self.paging.grow(name, len(self.tokens[name]))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tables)))
        computed = self.tokens[name][: data.draw(st.integers(0, len(self.tokens[name])))]
        for number, block_hash in enumerate(self.hashes(computed)):
            if number >= self.paging.offered[name]:
                self.pool.store(self.tables[name][number], block_hash)
        self.paging.store(name, computed)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tables)))
        self.pool.release(self.tables.pop(name))
        self.paging.release(name)
        del self.tokens[name]

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, paging = self.pool, self.paging
        assert self.tables == paging.tables
        assert [*reversed(pool.free), *pool.cached] == paging.idle, "the order in which idle blocks are taken"
        assert set(pool.cached) == {block for block in paging.idle if block in paging.stored.values()}
        assert pool.num_idle == len(paging.idle)
        assert pool.usage == 1 - len(paging.idle) / paging.num_blocks
        tables = list(self.tables.values())
        assert not conservation_errors(pool.num_blocks, pool.free, pool.cached, tables, pool.references)


Both.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPoolAgainstPaging = Both.TestCase


def names(*letters: str) -> list[bytes]:
    return [letter.encode() for letter in letters]


def test_the_block_that_was_held_least_recently_is_taken_first() -> None:
    pool = BlockPool(4)
    a, b, c, free = (pool.take() for _ in range(4))
    for block, name in zip((a, b, c), names("a", "b", "c"), strict=True):
        pool.store(block, name)
    pool.release([b])
    pool.release([a])
    pool.release([c])
    pool.hold(b)
    pool.release([b])  # again: it is the newest now
    pool.release([free])
    assert [pool.take() for _ in range(4)] == [free, a, c, b]
    assert [pool.find(name) for name in names("a", "b", "c")] == [None] * 3, "what was taken is forgotten"


def test_the_end_of_a_sequence_is_taken_before_its_beginning() -> None:
    pool = BlockPool(3)
    table = [pool.take() for _ in range(3)]
    for block, name in zip(table, names("a", "b", "c"), strict=True):
        pool.store(block, name)
    pool.release(table)
    assert [pool.take(), pool.take()] == [table[2], table[1]]
    assert pool.find(b"a") == table[0]


def test_a_block_that_others_hold_stays() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.store(block, b"a")
    pool.hold(block)
    pool.release([block])
    assert pool.references[block] == 1 and pool.cached == [] and pool.usage == 0.5
    pool.release([block])
    assert pool.cached == [block] and pool.num_idle == 2
    with pytest.raises(AssertionError, match="released more often"):
        pool.release([block])


def test_of_two_blocks_that_store_the_same_the_first_is_named() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.store(first, b"a")
    pool.store(second, b"a")
    pool.release([second])
    assert pool.find(b"a") == first and pool.free == [second], "nobody could find it"


class Counted(list[int]):
    """Counts how often one of its items is read, and is never read whole."""

    reads = 0

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all of them are read")


@pytest.mark.parametrize("num_blocks", [10, 10_000])
def test_an_operation_looks_at_its_own_blocks_alone(num_blocks: int) -> None:
    """Constant time, counted: whatever the size of the pool."""
    pool = BlockPool(num_blocks)
    for number in range(num_blocks):
        pool.store(pool.take(), b"%d" % number)
    pool.release(range(num_blocks))
    pool.references = counted = Counted(pool.references)
    taken = pool.take()
    pool.hold(5)
    pool.store(taken, b"other")
    pool.release([5, taken])
    assert pool.find(b"5") == 5 and pool.num_idle == num_blocks and pool.usage == 0
    assert counted.reads == 8


# `conservation_errors` and what it is there to see

SOUND = {"num_blocks": 4, "free": [3], "cached": [2], "tables": [[0, 1], [0]], "references": [2, 1, 0, 0]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"free": []}, "are not all 4 blocks"),
        ({"cached": []}, "are not all 4 blocks"),
        ({"free": [3, 3]}, "are not all 4 blocks"),
        ({"free": [3, 2]}, "are not all 4 blocks"),
        ({"cached": [2, 0]}, "are not all 4 blocks"),
        ({"free": [3, 4]}, "are not all 4 blocks"),
        ({"references": [1, 1, 0, 0]}, "block 0 is in 2 tables, and counted 1 times"),
        ({"references": [2, 1, 0, 1]}, "block 3 is in 0 tables, and counted 1 times"),
        ({"tables": [[0, 1], []]}, "block 0 is in 1 tables, and counted 2 times"),
        ({"tables": [[0, 1, 0]]}, "a table holds a block twice"),
    ],
)
def test_each_kind_of_error_is_reported(wrong: dict[str, object], says: str) -> None:
    assert conservation_errors(**SOUND) == []  # type: ignore[arg-type]
    errors = conservation_errors(**(SOUND | wrong))  # type: ignore[arg-type]
    assert len(errors) == 1 and says in errors[0]

"""Who holds which block, and which one is given away next: by hand, and under any operations."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from reference.serving.paging import Paging, conservation_errors

A, B, C = "A", "B", "C"


def test_a_table_holds_as_many_blocks_as_its_tokens_need() -> None:
    paging = Paging(num_blocks=4, block_size=2)
    assert [paging.blocks_for(count) for count in range(6)] == [0, 1, 1, 2, 2, 3]
    paging.hold(A, [], 3)
    assert paging.tables == {A: [0, 1]} and paging.idle == [2, 3]
    paging.grow(A, 4)
    assert paging.tables == {A: [0, 1]}, "there was room"
    paging.grow(A, 5)
    assert paging.tables == {A: [0, 1, 2]}
    assert paging.can_grow(A, 8) and not paging.can_grow(A, 9)


def test_what_was_stored_is_reused_by_several() -> None:
    paging = Paging(num_blocks=5, block_size=2)
    paging.hold(A, [], 5)
    paging.store(A, [1, 2, 3, 4, 5])
    assert paging.stored == {(1, 2): 0, (1, 2, 3, 4): 1}, "full blocks alone"
    assert paging.reusable([1, 2, 3, 4, 9]) == [0, 1]
    paging.hold(B, [0, 1], 5)
    assert paging.tables == {A: [0, 1, 2], B: [0, 1, 3]} and paging.idle == [4]
    paging.release(A)
    assert paging.idle == [2, 4], "B holds the others"
    paging.release(B)
    assert paging.idle == [3, 2, 4, 1, 0]


def test_free_blocks_go_first_then_those_held_least_recently_the_end_before_the_beginning() -> None:
    paging = Paging(num_blocks=5, block_size=1)
    for name, tokens in ((A, [1, 2]), (B, [3, 4])):
        paging.hold(name, [], 2)
        paging.store(name, tokens)
    paging.release(B)
    paging.release(A)
    assert paging.idle == [4, 3, 2, 1, 0]
    paging.hold(C, [2], 3)  # the beginning of B, and two more
    assert paging.tables[C] == [2, 4, 3]
    assert paging.stored == {(1,): 0, (1, 2): 1, (3,): 2}, "what is given away is forgotten"


def test_reused_blocks_are_not_counted_as_room() -> None:
    paging = Paging(num_blocks=3, block_size=1)
    paging.hold(A, [], 2)
    paging.store(A, [1, 2])
    paging.release(A)
    assert paging.fits([0, 1], 3) and not paging.fits([0, 1], 4)
    assert paging.fits([], 3)


def test_of_two_that_store_the_same_the_first_stays() -> None:
    paging = Paging(num_blocks=2, block_size=1)
    paging.hold(A, [], 1)
    paging.hold(B, [], 1)
    paging.store(A, [7])
    paging.store(B, [7])
    paging.release(B)
    assert paging.stored == {(7,): 0} and paging.idle == [1]


def test_a_block_is_offered_once() -> None:
    """Its namesake has been given away since, and it was offered then: it is not named later."""
    paging = Paging(num_blocks=2, block_size=1)
    paging.hold(A, [], 1)
    paging.hold(B, [], 1)
    paging.store(A, [7])
    paging.store(B, [7])
    paging.release(A)
    paging.hold(C, [], 1)  # takes A's block
    paging.store(B, [7])
    assert paging.stored == {}


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 3))
def test_blocks_are_conserved_whatever_happens(seed: int, num_blocks: int, block_size: int) -> None:
    """And a table always begins with what it reused, and a stored block stores what it is named for."""
    chance = random.Random(seed)
    paging = Paging(num_blocks, block_size)
    tokens: dict[int, list[int]] = {}
    written: dict[int, tuple[int, ...]] = {}  # block -> the sequence up to its end, when it was computed last
    for name in range(30):
        action = chance.choice(("hold", "hold", "grow", "store", "release"))
        if action == "hold":
            known = [chance.randint(0, 1) for _ in range(chance.randint(1, 8))]
            reused = paging.reusable(known)
            if paging.fits(reused, len(known)):
                paging.hold(name, reused, len(known))
                tokens[name] = known
                assert paging.tables[name][: len(reused)] == reused
                assert len(paging.tables[name]) == paging.blocks_for(len(known))
        elif tokens:
            other = chance.choice(sorted(tokens))
            if action == "grow" and paging.can_grow(other, len(tokens[other]) + 1):
                tokens[other].append(chance.randint(0, 1))
                paging.grow(other, len(tokens[other]))
            elif action == "store":
                paging.store(other, tokens[other])
                for number in range(len(tokens[other]) // block_size):
                    upto = tuple(tokens[other][: (number + 1) * block_size])
                    written[paging.tables[other][number]] = upto
            elif action == "release":
                paging.release(other)
                del tokens[other]
        tables = [*paging.tables.values()]
        cached = [block for block in paging.idle if block in paging.stored.values()]
        free = [block for block in paging.idle if block not in cached]
        counts = [sum(block in table for table in tables) for block in range(num_blocks)]
        assert not conservation_errors(num_blocks, free, cached, tables, counts)
        assert paging.idle[: len(free)] == free, "free ones are taken first"
        assert len(set(paging.stored.values())) == len(paging.stored), "a block stores one thing"
        assert all(written[block] == upto for upto, block in paging.stored.items())

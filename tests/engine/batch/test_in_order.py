"""Results come in order, as many are at work as may be, and no more are held than fit the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.in_order import Limits, in_order

AMPLE = Limits(running=10, held=100, waiting_size=10**6)


@dataclass
class Workshop:
    """Items are numbers; a result is as many bytes as its item. It counts what is where."""

    turns: list[int] = field(default_factory=list)  # of the event loop, that an item takes; 0 for those beyond
    taken: int = 0
    given: list[int] = field(default_factory=list)
    at_work: int = 0
    waiting: int = 0  # bytes that are made and not given
    most_at_work: int = 0
    most_held: int = 0
    most_waiting: int = 0

    async def items(self, sizes: Iterable[int]) -> AsyncIterator[tuple[int, int]]:
        for index, size in enumerate(sizes):
            self.taken += 1
            self.most_held = max(self.most_held, self.taken - len(self.given))
            yield index, size

    async def work(self, item: tuple[int, int]) -> bytes:
        index, size = item
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        for _ in range(self.turns[index] if index < len(self.turns) else 0):
            await asyncio.sleep(0)
        self.at_work -= 1
        self.waiting += size
        self.most_waiting = max(self.most_waiting, self.waiting)
        return bytes(size)

    def give(self, result: bytes) -> None:
        self.given.append(len(result))
        self.waiting -= len(result)

    def run(self, sizes: Iterable[int], limits: Limits) -> None:
        asyncio.run(in_order(self.items(sizes), self.work, self.give, limits))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=60),
    st.builds(Limits, st.integers(1, 6), st.integers(1, 12), st.integers(1, 60)),
)
def test_order_and_limits(cases: list[tuple[int, int]], limits: Limits) -> None:
    workshop = Workshop([turns for turns, _ in cases])
    sizes = [size for _, size in cases]
    workshop.run(sizes, limits)
    assert workshop.given == sizes
    assert workshop.most_at_work <= limits.running
    assert workshop.most_held <= limits.held
    # What was at work when the limit was met still adds to it.
    assert workshop.most_waiting < limits.waiting_size + limits.running * 30


def test_as_many_are_at_work_as_may_be() -> None:
    workshop = Workshop([5] * 50)
    workshop.run([1] * 50, Limits(running=7, held=20, waiting_size=100))
    assert workshop.most_at_work == 7


@pytest.mark.parametrize(
    ("limits", "taken"),
    [(Limits(running=4, held=30, waiting_size=10**6), 30), (Limits(running=4, held=10**6, waiting_size=50), 53)],
    ids=["lines", "bytes"],
)
def test_a_slow_first_item_lets_others_pass_until_the_window_is_full(limits: Limits, taken: int) -> None:
    workshop = Workshop([10_000])
    seen = []

    async def work(item: tuple[int, int]) -> bytes:
        result = await workshop.work(item)
        if item[0] == 0:
            seen.append(workshop.taken)
        return result

    asyncio.run(in_order(workshop.items([1] * 1000), work, workshop.give, limits))
    assert 4 < seen[0] <= taken
    assert workshop.given == [1] * 1000


def test_a_long_input_is_not_held() -> None:
    workshop = Workshop([2_000])
    workshop.run((1 for _ in range(100_000)), Limits(running=16, held=128, waiting_size=10**6))
    assert len(workshop.given) == 100_000
    assert workshop.most_held == 128


def test_a_result_is_given_while_the_next_item_is_awaited() -> None:
    given: list[bytes] = []

    async def items() -> AsyncIterator[bytes]:
        yield b"a"
        while not given:  # an item that is asked for by who has seen the first result
            await asyncio.sleep(0)
        yield b"b"

    async def work(item: bytes) -> bytes:
        return item

    asyncio.run(asyncio.wait_for(in_order(items(), work, given.append, AMPLE), 10))
    assert given == [b"a", b"b"]


@pytest.mark.parametrize("where", ["items", "work", "give"])
def test_an_error_ends_it_and_leaves_nothing_at_work(where: str) -> None:
    ended = []

    def fail(at: str, index: int) -> None:
        if where == at and index == 3:
            raise BrokenPipeError(where)

    async def items() -> AsyncIterator[int]:
        for index in range(10):
            fail("items", index)
            yield index

    async def work(index: int) -> bytes:
        try:
            await asyncio.sleep(0 if index < 5 else 1000)
            fail("work", index)
        finally:
            ended.append(index)
        return bytes(index)

    given: list[bytes] = []

    def give(result: bytes) -> None:
        fail("give", len(result))
        given.append(result)

    with pytest.raises(BrokenPipeError, match=where):
        asyncio.run(in_order(items(), work, give, AMPLE))
    assert given == [bytes(index) for index in range(len(given))]
    assert len(given) <= 3
    assert sorted(ended) == list(range(len(ended)))


def test_it_can_be_interrupted() -> None:
    async def interrupted() -> None:
        workshop = Workshop([10**9])
        running = asyncio.create_task(in_order(workshop.items([1] * 5), workshop.work, workshop.give, AMPLE))
        await asyncio.sleep(0.01)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())

"""Launches that may run at once never share a counter, and a GPU's counters are 0 before anything is launched."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimized.compile.arch import SM_90A
from optimized.counters import CounterNumbers
from optimized.device import CompileOnly, Gpu

launches = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40)


@given(launches)
def test_launches_that_may_meet_have_counters_of_their_own(made: list[tuple[int, bool]]) -> None:
    numbers = CounterNumbers(64)
    taken = [(numbers.take(stream, is_captured), stream, is_captured) for stream, is_captured in made]
    for i, (number, stream, is_captured) in enumerate(taken):
        for other, other_stream, other_is_captured in taken[:i]:
            follows = stream == other_stream and not is_captured and not other_is_captured
            assert (number == other) == follows


def test_a_pool_that_is_used_up_says_so() -> None:
    numbers = CounterNumbers(2)
    assert [numbers.take(7, True), numbers.take(7, False)] == [0, 1]
    assert numbers.take(7, False) == 1, "the stream has one"
    for stream, is_captured in [(7, True), (8, False)]:
        with pytest.raises(RuntimeError, match="all 2 counters of grid barriers are taken"):
            numbers.take(stream, is_captured)


def test_threads_take_different_ones() -> None:
    numbers, found = CounterNumbers(4000), []
    threads = [Thread(target=lambda: found.extend(numbers.take(0, True) for _ in range(1000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(4000))


class FakeTorch(SimpleNamespace):
    """What `Gpu` asks of torch, and the order in which it does."""

    def __init__(self) -> None:
        self.stream, self.is_capturing, self.done = 1, False, []
        properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
        self.cuda = SimpleNamespace(
            device=lambda index: nullcontext(),
            is_current_stream_capturing=lambda: self.is_capturing,
            current_stream=lambda: SimpleNamespace(cuda_stream=self.stream),
            get_device_properties=lambda index: properties,
            synchronize=lambda index: self.done.append("synchronize"),
        )
        self.int32 = "int32"

    def zeros(self, count: int, **_: Any) -> range:
        self.done.append("zeros")
        return range(count)


def test_a_gpu_deals_out_counters_that_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    gpu = Gpu(0)
    assert torch.done == ["zeros", "synchronize"]
    first, again = gpu.barrier_counter(), gpu.barrier_counter()
    assert len(first) == 1 and first == again
    torch.stream = 2
    assert gpu.barrier_counter() != first
    torch.is_capturing = True
    captured = [gpu.barrier_counter() for _ in range(3)]
    torch.is_capturing = False
    later = gpu.barrier_counter()
    assert len({*captured, first, later}) == 5
    assert torch.done == ["zeros", "synchronize"], "nothing is launched or waited for later"


def test_a_gpu_is_not_first_used_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    torch.is_capturing = True
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(RuntimeError, match="first used on cuda:0 while a graph is captured: call an operation"):
        Gpu(0)
    assert torch.done == []


def test_an_outline_of_one() -> None:
    counter = CompileOnly(SM_90A, lambda *_: None).barrier_counter()
    assert (counter.shape, counter.dtype) == ((1,), "int32")

"""The loop delivers what the core says to whoever asked, and survives whatever either of them does."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.loop import AsyncEngine, EngineError, EngineLost, EngineStopped
from reference.serving.request import Request, RequestError, RequestOutput
from tests.engine.history_core import LOSING, HistoryCore, expected_tokens, request


@contextmanager
def running(core: HistoryCore) -> Iterator[AsyncEngine]:
    engine = AsyncEngine(core)
    engine.start()
    try:
        yield engine
    finally:
        core.open.set()
        engine.stop(limit=5)
        assert not engine.alive


async def collect(engine: AsyncEngine, *requests: Request) -> list[RequestOutput]:
    return [output async for output in engine.generate(*requests)]


def tokens(outputs: list[RequestOutput], request_id: str, index: int = 0) -> list[int]:
    return [t for o in outputs if (o.request_id, o.index) == (request_id, index) for t in o.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.002)


def test_a_request_gets_its_tokens_from_one_thread() -> None:
    core = HistoryCore()
    with running(core) as engine:
        outputs = asyncio.run(collect(engine, request("a")))
    assert tokens(outputs, "a") == expected_tokens(request("a"))
    assert [o.finish_reason for o in outputs] == [None] * 4 + ["length"]
    assert len(core.threads) == 1
    assert core.threads != {threading.get_ident()}


def test_samples_and_requests_asked_for_together_all_finish() -> None:
    requests = [request("a", 5, n=3), request("b", 6, max_tokens=2), request("c", 7, n=2, max_tokens=9)]
    with running(HistoryCore()) as engine:
        outputs = asyncio.run(collect(engine, *requests))
    for r in requests:
        for index in range(r.params.n):
            assert tokens(outputs, r.request_id, index) == expected_tokens(r, index)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12), st.booleans()), min_size=1, max_size=12))
def test_any_company_gives_each_its_own(cases: list[tuple[int, int, bool]]) -> None:
    """Each of many tasks gets its own tokens, while others leave in the middle."""

    async def one(engine: AsyncEngine, number: int, n: int, max_tokens: int, leaves: bool) -> None:
        asked = request(str(number), number + 1, n=n, max_tokens=max_tokens)
        await asyncio.sleep(random.Random(number).random() / 500)
        if leaves:
            async with aclosing(engine.generate(asked)) as outputs:
                await anext(outputs)
            return
        got = await collect(engine, asked)
        assert [tokens(got, str(number), i) for i in range(n)] == [expected_tokens(asked, i) for i in range(n)]

    async def all_of_them(engine: AsyncEngine) -> None:
        await asyncio.gather(*(one(engine, number, *case) for number, case in enumerate(cases)))

    core = HistoryCore()
    with running(core) as engine:
        asyncio.run(all_of_them(engine))
    assert not core.samples


def test_an_idle_loop_sleeps() -> None:
    core = HistoryCore()
    with running(core) as engine:
        asyncio.run(collect(engine, request("a")))
        before = core.steps, time.process_time()
        time.sleep(0.2)
        assert core.steps == before[0]
        assert time.process_time() - before[1] < 0.1


@pytest.mark.parametrize("leave", ["close", "cancel"])
def test_leaving_aborts(leave: str) -> None:
    async def client(engine: AsyncEngine) -> None:
        outputs = engine.generate(request("a", max_tokens=90), request("b", max_tokens=1))
        if leave == "close":
            await anext(outputs)
            await outputs.aclose()
        else:
            core.open.clear()
            task = asyncio.create_task(collect(engine, request("a", max_tokens=90)))
            await until(lambda: core.added == ["a"])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            core.open.set()
        await until(lambda: "a" in core.aborted)

    core = HistoryCore(pause=0.002)
    with running(core) as engine:
        asyncio.run(client(engine))
    assert not core.samples


def test_a_thousand_aborts_leave_nothing_behind() -> None:
    async def client(engine: AsyncEngine, number: int) -> None:
        async with aclosing(engine.generate(request(str(number), max_tokens=90))) as outputs:
            await anext(outputs)

    async def clients(engine: AsyncEngine) -> None:
        for start in range(0, 1000, 100):
            await asyncio.gather(*(client(engine, start + number) for number in range(100)))
        await until(lambda: not core.samples)

    core = HistoryCore()
    with running(core) as engine:
        asyncio.run(clients(engine))
        assert not engine._streams


def test_an_event_loop_that_is_gone_aborts() -> None:
    async def client(engine: AsyncEngine) -> AsyncGenerator[RequestOutput, None]:
        outputs = engine.generate(request("a", max_tokens=90))
        await anext(outputs)
        core.open.clear()
        return outputs

    core = HistoryCore(pause=0.002)
    with running(core) as engine:
        loop = asyncio.new_event_loop()
        outputs = loop.run_until_complete(client(engine))
        loop.close()  # without closing the generator, as asyncio.run would
        core.open.set()
        asyncio.run(until(lambda: core.aborted == ["a"]))
        assert tokens(asyncio.run(collect(engine, request("b"))), "b") == expected_tokens(request("b"))
        del outputs


def test_a_step_that_fails_fails_all_that_run_and_the_loop_lives_on() -> None:
    async def clients(engine: AsyncEngine) -> None:
        core.open.clear()  # the first step waits until all have asked
        tasks = [asyncio.create_task(collect(engine, request(name))) for name in ("a", "bad", "c")]
        await asyncio.sleep(0.01)
        core.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, EngineError) and "ZeroDivisionError: step" in str(r) for r in results), results
        assert sorted(core.aborted) == ["a", "bad", "c"]
        assert tokens(await collect(engine, request("d")), "d") == expected_tokens(request("d"))

    core = HistoryCore(failing={"bad"})
    with running(core) as engine:
        asyncio.run(clients(engine))


def test_a_lost_device_fails_all_that_run_and_ends_the_loop() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        engine.on_lost = told.set
        core.open.clear()
        running = [asyncio.create_task(collect(engine, request(name, max_tokens=50))) for name in "abc"]
        running.append(asyncio.create_task(collect(engine, request("d", max_tokens=LOSING))))
        await asyncio.sleep(0.05)
        core.open.set()
        found = await asyncio.gather(*running, return_exceptions=True)
        assert [type(one) for one in found] == [EngineLost] * 4 and "no more work" in str(found[0])
        assert await asyncio.to_thread(told.wait, 5) and engine.lost and not engine.alive
        with pytest.raises(EngineStopped):
            await collect(engine, request("late"))

    told = threading.Event()
    core = HistoryCore(losing=LOSING)
    with running(core) as engine:
        asyncio.run(scenario(engine))
    assert sorted(core.aborted) == list("abcd")


def test_a_core_that_keeps_failing_is_not_stepped_without_end() -> None:
    class Stuck(HistoryCore):
        def has_work(self) -> bool:
            return True

        def step(self) -> list[RequestOutput]:
            self.steps += 1
            raise ZeroDivisionError

    core = Stuck()
    with running(core) as engine:
        with pytest.raises(EngineError):
            asyncio.run(collect(engine, request("a")))
        steps = core.steps
        time.sleep(0.1)
        assert core.steps <= steps + 1


def test_a_core_that_forgets_a_request_is_an_error_and_no_hang() -> None:
    with running(HistoryCore(forgetful=True)) as engine, pytest.raises(EngineError, match="1 requests are unfinished"):
        asyncio.run(asyncio.wait_for(collect(engine, request("a")), 5))


def test_a_refused_request_says_why_and_takes_its_company_with_it() -> None:
    empty = Request("empty", (), request("x").params)
    core = HistoryCore()
    with running(core) as engine:
        with pytest.raises(RequestError, match="the prompt is empty"):
            asyncio.run(collect(engine, request("a"), empty))
        assert core.aborted == ["a"]
        with pytest.raises(EngineError, match="ZeroDivisionError: add"):
            asyncio.run(collect(engine, request("crash on add")))
        assert tokens(asyncio.run(collect(engine, request("b"))), "b") == expected_tokens(request("b"))


def test_two_requests_of_one_id_do_not_disturb_each_other() -> None:
    async def clients(engine: AsyncEngine) -> None:
        core.open.clear()
        first = asyncio.create_task(collect(engine, request("a")))
        await until(lambda: core.added == ["a"])
        second = asyncio.create_task(collect(engine, request("a")))
        await asyncio.sleep(0.01)
        core.open.set()
        with pytest.raises(RequestError, match="is running"):
            await second
        assert tokens(await first, "a") == expected_tokens(request("a"))
        assert not core.aborted

    core = HistoryCore()
    with running(core) as engine:
        asyncio.run(clients(engine))


def test_outputs_after_an_abort_go_nowhere() -> None:
    class Late(HistoryCore):
        def step(self) -> list[RequestOutput]:
            return [RequestOutput("long gone", 0, (1,), "x"), *super().step()]

    with running(Late()) as engine:
        assert tokens(asyncio.run(collect(engine, request("a"))), "a") == expected_tokens(request("a"))


def test_stopping_lets_running_requests_finish_and_takes_no_more() -> None:
    async def clients(engine: AsyncEngine) -> None:
        core.open.clear()
        task = asyncio.create_task(collect(engine, request("a")))
        await until(lambda: core.added == ["a"])
        stopping = asyncio.create_task(asyncio.to_thread(engine.stop, 5))
        await until(lambda: not engine.alive)
        with pytest.raises(EngineStopped):
            await collect(engine, request("b"))
        core.open.set()
        assert tokens(await task, "a") == expected_tokens(request("a"))
        await stopping

    core = HistoryCore()
    engine = AsyncEngine(core)
    engine.start()
    asyncio.run(clients(engine))
    assert core.added == ["a"]


def test_stopping_gives_up_at_its_limit() -> None:
    async def clients(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, request("a", max_tokens=99)))
        await until(lambda: core.steps > 0)
        begun = time.monotonic()
        await asyncio.to_thread(engine.stop, 0.1)
        assert time.monotonic() - begun < 1
        with pytest.raises(EngineStopped, match="before the request was finished"):
            await task

    core = HistoryCore(pause=0.02)
    engine = AsyncEngine(core)
    engine.start()
    asyncio.run(clients(engine))
    assert core.aborted == ["a"]


def test_stopping_again_gives_no_more_time() -> None:
    """A server tells the engine so at the signal, and again when it ends."""

    async def clients(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, request("a", max_tokens=99)))  # two seconds
        await until(lambda: core.steps > 0)
        first = asyncio.create_task(asyncio.to_thread(engine.stop, 0.1))
        await until(lambda: not engine.alive)
        await asyncio.to_thread(engine.stop, 60)
        await first
        with pytest.raises(EngineStopped):
            await task

    core = HistoryCore(pause=0.02)
    engine = AsyncEngine(core)
    engine.start()
    asyncio.run(clients(engine))


def test_an_engine_that_was_not_started_refuses() -> None:
    engine = AsyncEngine(HistoryCore())
    assert not engine.alive
    with pytest.raises(EngineStopped):
        asyncio.run(collect(engine, request("a")))
    engine.stop()

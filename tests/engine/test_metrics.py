"""Metrics say what happened, in a form that Prometheus reads, and forget what has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from engine.core.observer import CoreObserver
from engine.loop import AsyncEngine, EngineError
from engine.metrics import SECONDS, Histogram, Metrics
from reference.serving.request import FinishReason, Request, RequestError, RequestOutput
from tests.engine.history_core import HistoryCore, request

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Clock:
    """A time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics("m", clock)


def values(metrics: Metrics) -> Values:
    """Every sample on the page, by name and labels without the model's."""
    page, content_type = metrics.page("")
    assert content_type.startswith("text/plain; version=0.0.4")
    found = {}
    for family in parse_text(page.decode()):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert family.name.startswith("process_") or labels.pop("model") == "m"
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return values(metrics)[f"diptych_{name}", tuple(sorted(labels.items()))]


def output(index: int = 0, *token_ids: int, reason: FinishReason | None = None, request_id: str = "a") -> RequestOutput:
    return RequestOutput(request_id, index, token_ids, "", finish_reason=reason)


def test_times_of_one_sample(metrics: Metrics, clock: Clock) -> None:
    asked = metrics.clock()
    clock.now += 2.0
    metrics.accepted(request("a", 1, 2, 3, 4), asked)
    clock.now += 1.0
    metrics.put_out([output(0, 7)])
    clock.now += 0.25
    metrics.put_out([output(0, 8)])
    clock.now += 0.5
    metrics.put_out([output(0, 9, 10, reason=FinishReason.STOP)])  # two at once: 0.25 each
    assert value(metrics, "time_to_first_token_seconds_sum") == 3.0
    assert value(metrics, "time_to_first_token_seconds_count") == 1
    assert value(metrics, "inter_token_latency_seconds_sum") == 0.5
    assert value(metrics, "inter_token_latency_seconds_count") == 2
    assert value(metrics, "inter_token_latency_seconds_bucket", le="0.1") == 0
    assert value(metrics, "inter_token_latency_seconds_bucket", le="0.25") == 2  # a bound is within
    assert value(metrics, "end_to_end_latency_seconds_sum") == 3.75
    assert value(metrics, "prompt_tokens_total") == 4
    assert value(metrics, "generated_tokens_total") == 4
    assert value(metrics, "samples_finished_total", reason="stop") == 1


def test_what_did_not_come_to_its_end_has_no_latency(metrics: Metrics, clock: Clock) -> None:
    metrics.accepted(request("a", n=2), clock.now)
    metrics.accepted(request("b"), clock.now)
    clock.now += 1
    metrics.put_out([output(0, 5), output(1, reason=FinishReason.ERROR)])
    metrics.dropped(request("a", n=2), FinishReason.ABORT)
    metrics.put_out([output(0, 5), output(0, request_id="never heard of", reason=FinishReason.STOP)])
    metrics.put_out([output(0, 5, request_id="b", reason=FinishReason.LENGTH)])
    finished = {reason: value(metrics, "samples_finished_total", reason=reason) for reason in FinishReason}
    assert finished == {"stop": 0, "length": 1, "abort": 1, "error": 1}
    assert value(metrics, "end_to_end_latency_seconds_count") == 1
    assert value(metrics, "generated_tokens_total") == 2
    assert not metrics._samples


def test_what_the_engine_tells(metrics: Metrics) -> None:
    observer: CoreObserver = metrics
    observer.scheduled(0.5)
    observer.prefix_lookup(100, 64)
    observer.prefix_lookup(10, 0)
    observer.preempted()
    observer.stepped(num_running=3, num_waiting=2, num_batched_tokens=12, kv_usage=0.75)
    assert value(metrics, "queue_time_seconds_sum") == 0.5
    assert value(metrics, "prefix_cache_queried_tokens_total") == 110
    assert value(metrics, "prefix_cache_hit_tokens_total") == 64
    assert value(metrics, "preemptions_total") == 1
    assert value(metrics, "step_tokens_sum") == 12
    gauges = "samples_running", "samples_waiting", "kv_usage_ratio"
    assert [value(metrics, gauge) for gauge in gauges] == [3, 2, 0.75]
    metrics.idle()
    assert [value(metrics, gauge) for gauge in gauges] == [0, 0, 0]


def test_two_servers_of_one_process_do_not_meet() -> None:
    one, other = Metrics("m"), Metrics("m")
    one.preempted()
    assert (value(one, "preemptions_total"), value(other, "preemptions_total")) == (1, 0)


def test_both_formats_are_what_the_libraries_parsers_read(metrics: Metrics) -> None:
    metrics.scheduled(0.5)
    page, content_type = metrics.page("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    [family] = [f for f in parse_openmetrics(page.decode()) if f.name == "diptych_queue_time_seconds"]
    assert family.type == "histogram"
    assert {sample.name.removeprefix(family.name): sample.value for sample in family.samples}["_sum"] == 0.5


@given(st.lists(st.one_of(st.floats(0, 1000), st.sampled_from(SECONDS))))
def test_a_histogram_counts_up_to_each_bound(seen: list[float]) -> None:
    histogram = Histogram("h", "help", SECONDS, "m")
    for one in seen:
        histogram.observe(one)
    [family] = histogram.collect()
    by_bound = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "h_bucket"}
    for bound in SECONDS:
        assert by_bound[str(bound)] == sum(one <= bound for one in seen)
    assert by_bound["+Inf"] == len(seen)
    [total] = [sample.value for sample in family.samples if sample.name == "h_sum"]
    assert total == pytest.approx(sum(seen))


@contextmanager
def running(core: HistoryCore) -> Iterator[AsyncEngine]:
    engine = AsyncEngine(core, Metrics("m"))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(5)


def test_the_loop_tells_all_of_it_and_leaves_nothing_behind() -> None:
    async def one(engine: AsyncEngine, asked: Request, leaves: bool) -> None:
        async with aclosing(engine.generate(asked)) as outputs:
            async for _ in outputs:
                if leaves:
                    break

    async def clients(engine: AsyncEngine) -> None:
        whole = [one(engine, request(f"whole {i}", n=2), False) for i in range(10)]
        broken = [one(engine, request(f"broken {i}", max_tokens=90), True) for i in range(10)]
        await asyncio.gather(*whole, *broken)
        with pytest.raises(RequestError):
            await one(engine, Request("empty", (), request("x").params), False)
        while engine._streams:
            await asyncio.sleep(0.001)

    core = HistoryCore()
    with running(core) as engine:
        before = values(engine.metrics)
        asyncio.run(clients(engine))
        middle = values(engine.metrics)
        core.failing.add("bad")
        with pytest.raises(EngineError):
            asyncio.run(one(engine, request("bad"), False))
    after = values(engine.metrics)
    assert not engine.metrics._samples
    told = {reason: value(engine.metrics, "samples_finished_total", reason=reason) for reason in FinishReason}
    assert told == {"stop": 0, "length": 20, "abort": 10, "error": 1}
    assert value(engine.metrics, "prompt_tokens_total") == 3 * 21
    assert value(engine.metrics, "time_to_first_token_seconds_count") == 30
    assert value(engine.metrics, "end_to_end_latency_seconds_count") == 20
    for name, labels in before:
        if name.endswith(("_total", "_count", "_sum", "_bucket")):
            key = name, labels
            assert before[key] <= middle[key] <= after[key], name


def test_a_runners_own_counts_are_read_when_the_page_is_asked_for() -> None:
    metrics, steps = Metrics("m"), 3
    metrics.add_counts(lambda: [("replays", "Steps that were replayed.", steps)])
    assert value(metrics, "replays_total") == 3
    steps = 5
    assert value(metrics, "replays_total") == 5
    page, _ = metrics.page("")
    assert b"# HELP diptych_replays_total Steps that were replayed.\n" in page
    assert b'diptych_replays_total{model="m"} 5.0\n' in page

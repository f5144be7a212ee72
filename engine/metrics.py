"""What a server tells Prometheus of itself.

One registry a server, none of the process. Everything but the page is called by the engine's thread alone, so a
histogram here is a list of counts: the library's own takes a lock and some microseconds an observation, which at a
thousand running samples is milliseconds a step. Times are of `clock`, in seconds.
Source: the Prometheus naming conventions and text formats.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString

from reference.serving.request import FinishReason, Request, RequestOutput

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = tuple(float(2**power) for power in range(15))


class Histogram(Collector):
    """Counts of values up to each bound, for one model. One thread observes; any may read."""

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...], model: str) -> None:
        self._name, self._documentation, self._model = name, documentation, model
        self._bounds = (*bounds, INF)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=["model"])
        buckets, seen = [], 0
        for bound, count in zip(self._bounds, list(self._counts), strict=True):
            seen += count
            buckets.append((floatToGoString(bound), float(seen)))
        family.add_metric([self._model], buckets, self._sum)
        yield family


class RunnerCounts(Collector):
    """What a runner counts by itself, asked for when the page is."""

    def __init__(self, counts: Callable[[], Iterable[tuple[str, str, int]]], model: str) -> None:
        self._counts, self._model = counts, model

    def collect(self) -> Iterator[CounterMetricFamily]:
        for name, documentation, value in self._counts():
            family = CounterMetricFamily(f"diptych_{name}", documentation, labels=["model"])
            family.add_metric([self._model], value)
            yield family


@dataclass(slots=True)
class _Sample:
    asked: float  # when its request was asked for
    last_output: float | None = None


class Metrics:
    """The metrics of one model. It is a `CoreObserver`, and the loop tells it of requests."""

    def __init__(self, model: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._model = model
        self.registry = CollectorRegistry()
        self._samples: dict[tuple[str, int], _Sample] = {}  # unfinished ones, by request id and index

        def histogram(name: str, documentation: str, bounds: tuple[float, ...] = SECONDS) -> Histogram:
            made = Histogram(f"diptych_{name}", documentation, bounds, model)
            self.registry.register(made)
            return made

        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"diptych_{name}", documentation, ["model"], registry=self.registry).labels(model)

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"diptych_{name}", documentation, ["model"], registry=self.registry).labels(model)

        self._queue_time = histogram("queue_time_seconds", "From a request's arrival to a sample's first step.")
        self._first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to a sample's first token."
        )
        self._inter_token = histogram(
            "inter_token_latency_seconds", "Between the outputs of a sample, for each token of the later one."
        )
        self._end_to_end = histogram(
            "end_to_end_latency_seconds", "From a request's arrival to the last token of a sample that came to its end."
        )
        self._step_tokens = histogram("step_tokens", "Tokens that a step computes, of prompts and outputs.", TOKENS)
        self._prompt_tokens = counter("prompt_tokens", "Tokens of the prompts of all requests taken.")
        self._generated_tokens = counter("generated_tokens", "Tokens sampled, the ending ones included.")
        finished = Counter(
            "diptych_samples_finished",
            "Samples that ended (a request has n). abort: the client left or the server stopped.",
            ["model", "reason"],
            registry=self.registry,
        )
        self._finished = {reason: finished.labels(model, reason.value) for reason in FinishReason}
        self._prefix_queried = counter("prefix_cache_queried_tokens", "Tokens looked up in the prefix cache.")
        self._prefix_hit = counter("prefix_cache_hit_tokens", "Tokens found in the prefix cache.")
        self._preemptions = counter("preemptions", "Times a sample lost its KV blocks, to be recomputed later.")
        self._running = gauge("samples_running", "Samples in the step at hand.")
        self._waiting = gauge("samples_waiting", "Samples that wait for a place in a step.")
        self._kv_usage = gauge("kv_usage_ratio", "The share of KV blocks that samples hold, 0 to 1.")
        ProcessCollector(registry=self.registry)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that an Accept header asks for, and its content type: OpenMetrics, else text."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def add_counts(self, counts: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        """Of a runner: names, what they count, and how many so far. It is called by whoever asks for the page."""
        self.registry.register(RunnerCounts(counts, self._model))

    # What the loop tells.

    def accepted(self, request: Request, asked: float) -> None:
        """The engine took a request that was asked for at that time."""
        self._prompt_tokens.inc(len(request.prompt_token_ids))
        for index in range(request.params.n):
            self._samples[request.request_id, index] = _Sample(asked)

    def put_out(self, outputs: Iterable[RequestOutput]) -> None:
        """A step of the engine gave these. Those of requests that were dropped do not count."""
        now = self.clock()
        generated = 0
        for output in outputs:
            key = output.request_id, output.index
            sample = self._samples.get(key)
            if sample is None:
                continue
            if output.token_ids:
                generated += len(output.token_ids)
                if sample.last_output is None:
                    self._first_token.observe(now - sample.asked)
                else:
                    self._inter_token.observe((now - sample.last_output) / len(output.token_ids))
                sample.last_output = now
            if output.finish_reason is not None:
                del self._samples[key]
                self._finished[output.finish_reason].inc()
                if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                    self._end_to_end.observe(now - sample.asked)
        self._generated_tokens.inc(generated)

    def dropped(self, request: Request, reason: FinishReason) -> None:
        """What is unfinished of a request ends for that reason."""
        for index in range(request.params.n):
            if self._samples.pop((request.request_id, index), None) is not None:
                self._finished[reason].inc()

    def idle(self) -> None:
        """The engine has nothing to do."""
        for gauge in (self._running, self._waiting, self._kv_usage):
            gauge.set(0)

    # What the engine tells, as CoreObserver says.

    def scheduled(self, queue_seconds: float) -> None:
        self._queue_time.observe(queue_seconds)

    def prefix_lookup(self, num_tokens: int, num_cached: int) -> None:
        self._prefix_queried.inc(num_tokens)
        self._prefix_hit.inc(num_cached)

    def preempted(self) -> None:
        self._preemptions.inc()

    def stepped(self, *, num_running: int, num_waiting: int, num_batched_tokens: int, kv_usage: float) -> None:
        self._step_tokens.observe(num_batched_tokens)
        self._running.set(num_running)
        self._waiting.set(num_waiting)
        self._kv_usage.set(kv_usage)

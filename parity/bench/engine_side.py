"""The engine under measurement: a number of requests at once, the next one when one has ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice

from engine.core.engine import Engine
from parity.bench.workload import Work
from reference.serving.request import Request, SamplingParams


def serve(engine: Engine, work: Sequence[Work], concurrency: int) -> float:
    """Seconds that the engine takes for all requests, `concurrency` of them at a time."""
    requests = [
        Request(
            f"request-{number}",
            one.prompt_token_ids,
            SamplingParams(temperature=0.0, max_tokens=one.num_output, ignore_eos=True),
        )
        for number, one in enumerate(work)
    ]
    waiting, tokens = iter(requests), 0
    start = time.perf_counter()
    for request in islice(waiting, concurrency):
        engine.add(request)
    while engine.has_work():
        for output in engine.step():
            tokens += len(output.token_ids)
            if output.finish_reason is not None:
                for request in islice(waiting, 1):
                    engine.add(request)
    seconds = time.perf_counter() - start
    assert tokens == sum(one.num_output for one in work), "the engine lost tokens"
    return seconds

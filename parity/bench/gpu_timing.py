"""Time of operations on a GPU: medians over replays of a CUDA graph, over rotating buffers.

A graph holds one call on each of several sets of buffers, so that what a call reads is not what the one before left in
the L2 cache, where the sets are larger than it; a replay's time divided by the number of calls is free of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

L2_BYTES = 60 << 20  # of an H200
REPLAYS = 20
MAX_SETS = 64


def sets_for(num_bytes: int) -> int:
    """How many sets of buffers keep a call's data out of the L2 cache: four times its size in all."""
    return min(MAX_SETS, max(2, -(-4 * L2_BYTES // max(num_bytes, 1))))


def microseconds(calls: Sequence[Callable[[], Any]]) -> float:
    """The median time of one of the calls, which do the same on buffers of their own."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # where the buffers are filled
    with torch.cuda.stream(stream):
        for call in (*calls, *calls[:2]):  # compiles, and lets libraries take their workspaces
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        rounds = max(1, 16 // len(calls))
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                for call in calls:
                    call()
        times = _timed(graph.replay, REPLAYS)
    return 1000 * median(times) / (rounds * len(calls))


def _timed(run: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of each of `count` runs on the current stream, after three that are not timed."""
    import torch

    for _ in range(3):
        run()
    times = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times


def copy_bandwidth(num_bytes: int = 1 << 31) -> float:
    """GB/s of a large copy on this chip, bytes read and bytes written counted."""
    import torch

    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * num_bytes / median(_timed(lambda: target.copy_(source), REPLAYS)) / 1e6

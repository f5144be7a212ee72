"""Every block begins once, whole clusters at a time, each one's blocks by rank."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.gpu.launch import Extent, Launch
from simulators.gpu.machine.block_queue import BlockQueue

EXTENTS = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


def by_cluster(clusters: Extent, cluster: Extent) -> list[int]:
    """Blocks of a grid of clusters, one after another: x fastest, of clusters and within each."""
    gx, gy, _ = (many * size for many, size in zip(clusters, cluster, strict=True))
    blocks = []
    for k, j, i in product(*map(range, reversed(clusters))):
        for c, b, a in product(*map(range, reversed(cluster))):
            blocks.append((i * cluster[0] + a) + gx * ((j * cluster[1] + b) + gy * (k * cluster[2] + c)))
    return blocks


@settings(max_examples=60, deadline=None)
@given(EXTENTS, EXTENTS, st.integers(1, 1024), st.integers(1, 40), st.data())
def test_all_blocks_begin_once(clusters: Extent, cluster: Extent, threads: int, room: int, data: st.DataObject) -> None:
    x, y, z = (many * size for many, size in zip(clusters, cluster, strict=True))
    size = prod(cluster)
    resident = room * size
    queue = BlockQueue(Launch("k", (x, y, z), (threads, 1, 1), b"", cluster=cluster), resident)
    begun = [queue.first()]
    assert 0 < len(begun[0]) <= resident
    while queue.num_left:
        beside = data.draw(st.integers(0, resident))
        left, more = queue.num_left, queue.more(beside=beside)
        assert len(more) == min(left, (resident - beside) // size * size)
        begun.append(more if len(more) else queue.first())
    assert all(len(part) % size == 0 for part in begun)
    assert np.concatenate(begun).tolist() == by_cluster(clusters, cluster)


def test_a_cooperative_launch_begins_whole() -> None:
    queue = BlockQueue(Launch("k", (300, 1, 1), (1024, 1, 1), b"", is_cooperative=True), 400)
    assert queue.first().tolist() == list(range(300)) and queue.num_left == 0

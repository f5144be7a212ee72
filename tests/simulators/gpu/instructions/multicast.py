"""What the tests of `multimem` share: a launch with a multicast window, and an all-reduce through it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.chip import H200
from simulators.gpu.gpu import Gpu, WatcherFactory
from simulators.gpu.launch import Launch
from simulators.gpu.ptx.parser import parse
from simulators.gpu.report import Report
from tests.simulators.gpu.launching import kernel

Array = NDArray[Any]
WINDOW = 1 << 50  # no address of the host
# %rd1 is the window, %rd2, %rd3, ... are arrays: first the replicas, then the others. %rd10 is the thread's 16 bytes of
# the window, %rd11 those of the first other array where there are four replicas.
OWN = "mul.wide.u32 %rd9, %r1, 16; add.s64 %rd10, %rd1, %rd9; add.s64 %rd11, %rd6, %rd9;"


def launched(
    body: str,
    replicas: Sequence[Array],
    others: Sequence[Array] = (),
    *,
    seed: int | None = None,
    watchers: Sequence[WatcherFactory] = (),
    is_initialized: bool = True,
    grid: int = 1,
    block: int = 32,
) -> Report:
    gpu = Gpu(H200, seed=seed, watchers=watchers)
    for i, one in enumerate([*replicas, *others]):
        gpu.memory.add_array(one, f"array {i}", is_initialized=is_initialized or i >= len(replicas))
    gpu.memory.add_multicast(WINDOW, replicas[0].nbytes, [one.ctypes.data for one in replicas], "everywhere")
    places = [WINDOW, *(one.ctypes.data for one in [*replicas, *others])]
    parameters = struct.pack(f"<{len(places)}Q", *places)
    text = kernel(body, len(places))
    return gpu.launch(parse(text), Launch("k", (grid, 1, 1), (block, 1, 1), parameters))


def random(kind: Any, count: int, seed: int) -> Array:
    numbers = np.random.default_rng(seed)
    if np.dtype(kind).kind in "ui":
        limits = np.iinfo(kind)
        return numbers.integers(limits.min, limits.max, count, kind, endpoint=True)
    return (numbers.standard_normal(count) * 2.0 ** numbers.integers(-6, 6, count)).astype(kind)


def four(kind: Any, count: int) -> list[Array]:
    return [random(kind, count, seed) for seed in range(4)]


ALL_REDUCE = """
mad.lo.u32 %r3, %r2, %ntid.x, %r1;
mul.wide.u32 %rd9, %r3, 16;
add.s64 %rd10, %rd1, %rd9;
multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%f1, %f2, %f3, %f4}, [%rd10];
multimem.st.relaxed.sys.global.v4.f32 [%rd10], {%f1, %f2, %f3, %f4};
"""

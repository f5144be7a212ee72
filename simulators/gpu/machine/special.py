"""Special registers: what a thread may ask about itself and its launch. Source: PTX ISA, "Special Registers"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch
from simulators.gpu.chip import WARP

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

_AXES = "xyz"
Array = NDArray[Any]


def _coordinate(number: Array, extent: tuple[int, int, int], axis: int) -> Array:
    """Of numbers below the extents' product, which count along x first."""
    below, beyond = prod(extent[:axis]), prod(extent[axis + 1 :])
    coordinate = number // below if below > 1 else number
    return coordinate % extent[axis] if beyond > 1 else coordinate


def _cluster_of(batch: Batch, slots: Array) -> tuple[Array, ...]:
    """Where in the grid of clusters, and where in its cluster, each slot's block is: x, y, z twice."""
    launch = batch.launch
    blocks = batch.blocks[slots]
    at = [_coordinate(blocks, launch.grid, axis) for axis in range(3)]
    of_grid = [index // size for index, size in zip(at, launch.cluster, strict=True)]
    within = [index % size for index, size in zip(at, launch.cluster, strict=True)]
    return *of_grid, *within


def _rank(batch: Batch, slots: Array) -> Array:
    x, y, _ = batch.launch.cluster
    *_, i, j, k = _cluster_of(batch, slots)
    return (i + x * (j + y * k)).astype(np.uint32)


_BY_AXIS: dict[str, Callable[[int, Machine, Batch], Array | int]] = {
    "%tid": lambda axis, _, b: _coordinate(b.in_block, b.launch.block, axis),
    "%ntid": lambda axis, _, b: b.launch.block[axis],
    "%ctaid": lambda axis, _, b: _coordinate(b.blocks[b.slot], b.launch.grid, axis),
    "%nctaid": lambda axis, _, b: b.launch.grid[axis],
    "%clusterid": lambda axis, _, b: _cluster_of(b, b.slot)[axis],
    "%nclusterid": lambda axis, _, b: b.launch.grid[axis] // b.launch.cluster[axis],
    "%cluster_ctaid": lambda axis, _, b: _cluster_of(b, b.slot)[3 + axis],
    "%cluster_nctaid": lambda axis, _, b: b.launch.cluster[axis],
}


def _table() -> dict[str, Callable[[Machine, Batch], Array | int]]:
    """A value a thread, or one for all."""
    table: dict[str, Callable[[Machine, Batch], Array | int]] = {
        "%laneid": lambda _, b: b.lane,
        "%warpid": lambda _, b: (b.in_block // WARP).astype(np.uint32),
        "%nwarpid": lambda m, _: m.chip.threads_per_sm // WARP,
        "%smid": lambda m, b: (b.blocks[b.slot] % m.chip.num_sms).astype(np.uint32),
        "%nsmid": lambda m, _: m.chip.num_sms,
        "%gridid": lambda m, _: m.num_launches,
        "%lanemask_eq": lambda _, b: np.uint32(1) << b.lane,
        "%lanemask_lt": lambda _, b: (np.uint32(1) << b.lane) - np.uint32(1),
        "%lanemask_le": lambda _, b: (np.uint32(2) << b.lane) - np.uint32(1),
        "%lanemask_gt": lambda _, b: ~((np.uint32(2) << b.lane) - np.uint32(1)),
        "%lanemask_ge": lambda _, b: ~((np.uint32(1) << b.lane) - np.uint32(1)),
        "%dynamic_smem_size": lambda _, b: b.launch.shared_bytes,
        "%total_smem_size": lambda m, _: m.shared.size,
        "%aggr_smem_size": lambda m, _: m.shared.size + m.chip.shared_reserved,
        "%reserved_smem_offset_begin": lambda _, __: 0,
        "%is_explicit_cluster": lambda _, b: b.launch.cluster_blocks > 1,
        "%cluster_ctarank": lambda _, b: _rank(b, b.slot),
        "%cluster_nctarank": lambda _, b: b.launch.cluster_blocks,
    }
    for axis, name in enumerate(_AXES):
        table |= {f"{register}.{name}": partial(read, axis) for register, read in _BY_AXIS.items()}
    return table


_TABLE = _table()
_CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


def is_clock(name: str) -> bool:
    return name in _CLOCKS


def is_special(name: str) -> bool:
    return name in _TABLE or name in _CLOCKS


def read_special(machine: Machine, name: str) -> Array:
    """u32 (u64 for %clock64 and %globaltimer), one value a thread of the batch. Clocks count executed instructions."""
    if name in _CLOCKS:
        ticks = machine.ticks
        if name in ("%clock64", "%globaltimer"):
            return np.full(machine.batch.num_threads, ticks, np.uint64)
        return np.full(
            machine.batch.num_threads, (ticks >> 32 if name.endswith("hi") else ticks) & 0xFFFFFFFF, np.uint32
        )
    known = machine.batch.special
    if name not in known:
        value = _TABLE[name](machine, machine.batch)
        known[name] = np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.uint32), machine.batch.num_threads))
    return known[name]

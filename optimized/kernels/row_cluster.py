"""A long row in the shared memory of a cluster of blocks: read once from memory, then looked at as often as need be.

Block c of a row's cluster holds the elements c * slice .. (c + 1) * slice - 1. How many blocks there are, and which
thread looks at which element, depends on the row's length alone: so what is added up is added up in one order,
whatever else a launch computes.

Blocks tell each other things through slots: an array of one word a warp of the cluster, which every block has, and
into which every warp writes one word in all of them. After the next barrier of the cluster, whoever reads the slots
has what all warps said. Slots may be written again after one more barrier.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.ordered import entry_of_words, largest_of_warp
from optimized.kernels.row_slices import UNIT, RowSlices
from optimized.ptx.cluster import cluster_barrier, store_in_block

THREADS = 512  # of a block
WARPS = THREADS // WARP
MAX_CLUSTER = 8  # blocks; more need not find room on a chip
FEW_ELEMENTS = 4096  # that one block takes
_SLICE_BYTES = 190 * 1024  # at most; the rest of shared memory is for other things

u32 = cutlass.Uint32
f32 = cutlass.Float32


def cluster_of(row_length: int) -> int:
    """Blocks of a row."""
    blocks = 1
    while blocks < MAX_CLUSTER and blocks * FEW_ELEMENTS < row_length:
        blocks *= 2
    return blocks


def slice_of(row_length: int) -> int:
    """Elements of a block."""
    return -(-row_length // (cluster_of(row_length) * UNIT)) * UNIT


def longest_row() -> int:
    return _SLICE_BYTES // 4 // UNIT * UNIT * MAX_CLUSTER


def check_length(operation: str, row_length: int) -> None:
    """Errors: ValueError for a row that shared memory has no room for."""
    if row_length > longest_row():
        raise ValueError(f"{operation}: a row has {row_length} logits; at most {longest_row()} are supported")


class RowCluster(RowSlices):
    """A kernel of this kind. Elements are float32."""

    threads = THREADS

    @property
    def cluster(self) -> int:
        return cluster_of(self.row_length)

    @property
    def slice(self) -> int:  # type: ignore[override]
        return slice_of(self.row_length)


@cute.jit
def read_batch(
    mRow: cute.Tensor,  # f32 [V]
    number: cutlass.Int32,  # of the thread's first access
    end: cutlass.Int32,  # number of the first access that is not the block's
    row: cutlass.Constexpr,  # the kernel
) -> cute.Tensor:  # f32 [vector, batch] in registers
    """A thread's next elements; -infinity beyond the block's."""
    gRow = cute.zipped_divide(mRow, (row.vector,))
    rRow = cute.make_rmem_tensor((row.vector, row.batch), f32)
    for i in range_constexpr(row.batch):
        here = number + i * THREADS
        cute.autovec_copy(gRow[None, here if here < end else end - 1], rRow[None, i])
    for i in range_constexpr(row.batch):
        if number + i * THREADS >= end:
            rRow[None, i].fill(-f32.inf)
    return rRow


@cute.jit
def tell(sSlots: cute.Tensor, value: cutlass.Uint32, row: cutlass.Constexpr) -> None:
    """Write a warp's word (the same in all its lanes) into the slots of every block; sSlots: u32 [cluster * WARPS]."""
    lane = cute.arch.lane_idx()
    place = cute.arch.block_idx_in_cluster() * WARPS + cute.arch.warp_idx()  # all lanes must ask for the warp's number
    if lane < row.cluster:
        store_in_block(sSlots.iterator + place, lane, value)


@cute.jit
def meet(row: cutlass.Constexpr) -> None:
    """The barrier of the cluster: slots that were told before it can be heard after it."""
    cluster_barrier(row.cluster)


@cute.jit
def arrive(row: cutlass.Constexpr) -> None:
    """Say that the block runs, and that what others may add to is 0. `wait_for_all` must follow."""
    if const_expr(row.cluster > 1):
        cute.arch.cluster_arrive()


@cute.jit
def wait_for_all(row: cutlass.Constexpr) -> None:
    """Until every block of the cluster has arrived: only then may any be told anything."""
    if const_expr(row.cluster > 1):
        cute.arch.cluster_wait()


@cute.jit
def heard_max(sSlots: cute.Tensor, row: cutlass.Constexpr) -> cutlass.Uint32:
    """The largest of what was told, in every thread."""
    lane = cute.arch.lane_idx()
    found = sSlots[_place(lane, row)]
    for i in range_constexpr(WARP, row.cluster * WARPS, WARP):
        found = cutlass.max(found, sSlots[lane + i])
    return cute.arch.warp_redux_sync(found, "max")


@cute.jit
def heard_largest(sHigh: cute.Tensor, sLow: cute.Tensor, row: cutlass.Constexpr) -> cutlass.Uint64:
    """The largest of the entries that were told, a word in each of two slots, in every thread."""
    lane = cute.arch.lane_idx()
    here = _place(lane, row)
    found = entry_of_words(sHigh[here], sLow[here])
    for i in range_constexpr(WARP, row.cluster * WARPS, WARP):
        other = entry_of_words(sHigh[lane + i], sLow[lane + i])
        found = other if other > found else found
    return largest_of_warp(found)


@cute.jit
def heard_count(sSlots: cute.Tensor, row: cutlass.Constexpr) -> cutlass.Uint32:
    """The sum of what was told, in every thread."""
    lane = cute.arch.lane_idx()
    found = u32(0)
    for i in range_constexpr(0, row.cluster * WARPS, WARP):
        if lane + i < row.cluster * WARPS:
            found += sSlots[lane + i]
    return cute.arch.warp_redux_sync(found, "add")


@cute.jit
def heard_sum(sSlots: cute.Tensor, row: cutlass.Constexpr) -> cutlass.Float32:
    """The sum of the float32 numbers that were told, in one order, in every thread."""
    lane = cute.arch.lane_idx()
    found = f32(0.0)
    for i in range_constexpr(0, row.cluster * WARPS, WARP):
        if lane + i < row.cluster * WARPS:
            found += sSlots[lane + i].bitcast(f32)
    return cute.arch.warp_reduction(found, operator.add)


def _place(lane: cutlass.Int32, row: Any) -> cutlass.Int32:
    """Of a lane's first slot; where there are fewer than lanes, some read one twice."""
    count = row.cluster * WARPS
    return lane if const_expr(count >= WARP) else lane % count

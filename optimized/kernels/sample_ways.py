"""The ways in which a row that has been read is sampled. Each writes the row's token, and is taken by all threads of
its cluster."""

from __future__ import annotations

from typing import NamedTuple

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.largest import (
    MOST_GATHERED,
    bring_together,
    count_distance,
    gather_within,
    put_in_order,
    reach_of,
    take_largest,
    tell_bins,
)
from optimized.kernels.limit_set import Searched
from optimized.kernels.ordered import LAST_ENTRY, entry_of
from optimized.kernels.philox import NoiseOf
from optimized.kernels.row_cluster import THREADS, meet
from optimized.kernels.sample_all import draw_of_all
from optimized.kernels.sample_few import FEW, draw_of_few
from optimized.kernels.sample_limits import last_kept
from optimized.kernels.sample_memory import SampleMemory
from optimized.kernels.sample_row import choose_largest

u64 = cutlass.Uint64
f32 = cutlass.Float32


class Wish(NamedTuple):
    """What a row asks for."""

    divisor: cutlass.Float32  # its temperature
    top_k: cutlass.Int32
    top_p: cutlass.Float32
    min_p: cutlass.Float32
    noise: NoiseOf


class Tops(NamedTuple):
    """Of what may be sampled, divided."""

    first: cutlass.Int32  # id of the block's first element
    top: cutlass.Float32  # the row's largest, finite
    own_top: cutlass.Float32  # the thread's


@cute.jit
def sample_greedily(
    of: Tops,
    memory: SampleMemory,
    mTokenIds: cute.Tensor,  # i32 [R]
    request: cutlass.Int32,
    row: cutlass.Constexpr,  # the kernel
) -> None:
    """The largest; the lowest id on a tie."""
    thread, _, _ = cute.arch.thread_idx()
    entry = u64(0)
    if of.own_top == of.top:
        for i in cutlass.range(row.vectors, unroll=1):
            place = (thread + i * THREADS) * row.vector
            for e in range_constexpr(row.vector):
                if place < row.slice and entry == u64(0):  # noqa: SIM102, a load that is in a condition is made in any case
                    if memory.sRow[place + e] == of.top:
                        entry = entry_of(of.top, of.first + place + e)
    choose_largest(entry, memory.sSlots[None, 3], memory.sSlots[None, 7], mTokenIds, request, row)


@cute.jit
def sample_few(
    of: Tops,
    wish: Wish,  # whose top-k is 1 to FEW
    memory: SampleMemory,
    mTokenIds: cute.Tensor,  # i32 [R]
    request: cutlass.Int32,
    row: cutlass.Constexpr,
) -> None:
    """The largest are gathered by the first block, and one of its warps does the rest."""
    thread, _, _ = cute.arch.thread_idx()
    rank = cute.arch.block_idx_in_cluster()
    count_distance(memory.sBins, of.top - of.own_top)
    cute.arch.sync_threads()
    tell_bins(memory.sBins, memory.sTotals, row)
    meet(row)
    reach = reach_of(memory.sTotals, wish.top_k)
    gather_within(memory.sRow, of.first, of.top, reach, memory.sFound, memory.sCounts, row)
    total = bring_together(memory.sFound, memory.sCounts, memory.sSlots[None, 2], memory.sTogether, row)
    if total > MOST_GATHERED:
        take_largest(memory.sRow, of.first, wish.top_k, memory.sSlots, memory.sOrdered, row)
        total = wish.top_k
    elif rank == 0:
        put_in_order(memory.sTogether, total, memory.sOrdered, FEW)
    if rank == 0:
        cute.arch.sync_threads()
        if thread < WARP:
            count = cutlass.min(wish.top_k, total)
            token = draw_of_few(memory.sOrdered, count, wish.top_p, wish.min_p, wish.noise)
            if thread == 0:
                mTokenIds[request] = token


@cute.jit
def sample_all(
    of: Tops,
    wish: Wish,
    mRow: cute.Tensor,  # f32 [V]: the logits as they were given
    memory: SampleMemory,
    mTokenIds: cute.Tensor,  # i32 [R]
    request: cutlass.Int32,
    row: cutlass.Constexpr,
) -> None:
    """The last token that top-k and top-p keep is found, if there are such; then all that are kept are perturbed."""
    last = u64(LAST_ENTRY)
    if const_expr(row.limits == "any"):
        if wish.top_k > 0 and wish.top_k < row.row_length:
            searched = Searched(memory.sRow, of.first, of.top, last)
            last = last_kept(searched, f32(wish.top_k), memory, True, row)
            meet(row)  # what is to come writes to slots that may still be read
        if wish.top_p < 1.0:
            last = last_kept(Searched(memory.sRow, of.first, of.top, last), wish.top_p, memory, False, row)
    of_row = of.first, of.top, last, wish.min_p, wish.divisor, wish.noise
    entry = draw_of_all(mRow, memory.sRow, memory.sMaxima, *of_row, row)
    choose_largest(entry, memory.sSlots[None, 3], memory.sSlots[None, 7], mTokenIds, request, row)

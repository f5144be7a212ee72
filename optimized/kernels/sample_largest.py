"""The first of a part's falling order: all that may be among the first k of a row, and few others.

1. Each thread's largest element has a distance to the part's largest, and the k-th of these distances is found, to
   eight bits of its fraction. At least k elements are no farther away; so the first k of the part are not.
2. All elements up to there are listed.
Where they are too many (hundreds of ties), the first is taken k times.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.ordered import LAST_ENTRY, entry_of
from optimized.kernels.row_slices import QUAD
from optimized.kernels.sample_heads import MOST_LISTED
from optimized.kernels.sample_part import THREADS, largest_of_block, largest_of_quad

_FIRST_BIT, _LAST_BIT = 30, 15  # of a distance that count
_LARGEST_BITS = 0x7F7FFFFF  # of the largest number
_EACH = THREADS // WARP

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


@cute.jit
def reach_of(
    sDistances: cute.Tensor,  # f32 [THREADS], each 0 or more: of each thread's largest; infinite if there is none
    sReach: cute.Tensor,  # f32 [1]
    count: cutlass.Int32,  # 1 or more
) -> cutlass.Float32:
    """A distance that at least `count` threads' elements do not exceed; the largest number if there are fewer. In every
    thread of the block, all of which must call it, once they have met."""
    if cute.arch.warp_idx() == 0:
        lane = cute.arch.lane_idx()
        rBits = cute.make_rmem_tensor((_EACH,), u32)
        for i in range_constexpr(_EACH):
            rBits[i] = sDistances[i * WARP + lane].bitcast(u32)
        prefix = u32(0)  # the largest below which there are fewer than `count`
        for i in cutlass.range(_FIRST_BIT - _LAST_BIT + 1, unroll=1):
            trial = prefix | (u32(1) << u32(_FIRST_BIT - i))
            below = u32(0)
            for j in range_constexpr(_EACH):
                below += u32(1) if rBits[j] < trial else u32(0)
            below = cute.arch.warp_redux_sync(below, "add")
            prefix = trial if below < u32(count) else prefix
        reach = cutlass.min(prefix | u32((1 << _LAST_BIT) - 1), u32(_LARGEST_BITS))
        if lane == 0:
            sReach[0] = reach.bitcast(f32)
    cute.arch.sync_threads()
    return sReach[0]


@cute.jit
def list_largest(
    sRow: cute.Tensor,  # f32 [slice]: logits that may be sampled
    first: cutlass.Int32,  # id of the part's first element
    top: cutlass.Float32,  # the part's largest quotient, finite
    own_top: cutlass.Float32,  # the largest quotient of what this thread wrote to sRow
    divisor: cutlass.Float32,
    count: cutlass.Int32,  # k: 1 to MOST_LISTED
    sDistances: cute.Tensor,  # f32 [THREADS]
    sReach: cute.Tensor,  # f32 [1]
    sFound: cute.Tensor,  # u64 [MOST_LISTED]
    sCount: cute.Tensor,  # u32 [1], 0
    sEntries: cute.Tensor,  # u64 [WARPS]
    row: cutlass.Constexpr,  # the kernel
) -> cutlass.Int32:
    """List (quotient, id) in sFound; returns how many. Every thread of the block must call it, and meet after it."""
    thread, _, _ = cute.arch.thread_idx()
    sDistances[thread] = top - own_top
    cute.arch.sync_threads()
    reach = reach_of(sDistances, sReach, count)
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad = cute.make_rmem_tensor((QUAD,), f32)
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            # The largest quotient is the quotient of the largest: division keeps the order.
            if top - largest_of_quad(rQuad) / divisor <= reach:
                for e in range_constexpr(QUAD):
                    value = rQuad[e] / divisor
                    if top - value <= reach:
                        place = cute.arch.atomic_add(sCount.iterator, u32(1), sem="relaxed", scope="cta")
                        if place < u32(MOST_LISTED):
                            sFound[place] = entry_of(value, first + number * QUAD + e)
    cute.arch.sync_threads()
    listed = i32(sCount[0])
    if listed > MOST_LISTED:
        listed = _take_largest(sRow, first, divisor, count, sFound, sEntries, row)
    return listed


@cute.jit
def _take_largest(
    sRow: cute.Tensor,
    first: cutlass.Int32,
    divisor: cutlass.Float32,
    count: cutlass.Int32,
    sFound: cute.Tensor,
    sEntries: cute.Tensor,
    row: cutlass.Constexpr,
) -> cutlass.Int32:
    """The first `count` of finite ones, one after another. Whose was the last looks for its next."""
    thread, _, _ = cute.arch.thread_idx()
    listed = i32(0)
    own = _first_below(sRow, first, divisor, u64(2**64 - 1), row)
    for _ in cutlass.range(count, unroll=1):
        best = largest_of_block(own, sEntries)
        if best > u64(LAST_ENTRY):
            if thread == 0:
                sFound[listed] = best
            listed += 1
            if own == best:
                own = _first_below(sRow, first, divisor, best, row)
    cute.arch.sync_threads()
    return listed


@cute.jit
def _first_below(
    sRow: cute.Tensor,
    first: cutlass.Int32,
    divisor: cutlass.Float32,
    last: cutlass.Uint64,
    row: cutlass.Constexpr,
) -> cutlass.Uint64:
    """The thread's largest entry below `last`; 0 if it has none."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad = cute.make_rmem_tensor((QUAD,), f32)
    best = u64(0)
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            for e in range_constexpr(QUAD):
                entry = entry_of(rQuad[e] / divisor, first + number * QUAD + e)
                if entry < last and entry > best:
                    best = entry
    return best

"""What comes before a token in the falling order: how many tokens, or how much of the probability.

A row's mass is float32, added up in one order: each thread's elements, then lanes, warps and parts. Counts are sums of
ones, which are exact.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import cutlass
from cutlass import cute, range_constexpr

from optimized.kernels.ordered import LAST_ENTRY, high_word, low_word, value_of
from optimized.kernels.row_slices import QUAD
from optimized.kernels.sample_heads import PICKS
from optimized.kernels.sample_part import THREADS, WARPS

SUMS = 1 + PICKS
END = LAST_ENTRY | 0xFFFFFFFF  # an entry before which come those of all numbers above -infinity, and no others
u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


class Pivot(NamedTuple):
    """An entry as it is compared with: what comes before it is `least_before` or more if its id is below `number`, and
    `least_behind` or more if not."""

    least_before: cutlass.Float32
    least_behind: cutlass.Float32
    number: cutlass.Uint32


@cute.jit
def pivot_of(entry: cutlass.Uint64) -> Pivot:
    """entry: (quotient, id); or any word between two such; or the largest word, before which comes nothing: its numbers
    are NaN."""
    key = high_word(entry)
    return Pivot(value_of(key), value_of(key + u32(1)), ~low_word(entry))


@cute.jit
def precedes(value: cutlass.Float32, token: cutlass.Int32, pivot: Pivot) -> cutlass.Boolean:
    """Does it come before the pivot? Not if it is NaN."""
    return value >= (pivot.least_before if u32(token) < pivot.number else pivot.least_behind)


@cute.jit
def add_up_before(
    sRow: cute.Tensor,  # f32 [slice]: quotients that may be sampled
    first: cutlass.Int32,  # id of the part's first element
    top: cutlass.Float32,  # the row's largest, finite
    pivots: tuple[Pivot, Pivot, Pivot],
    counts: cutlass.Boolean,  # tokens, and not their probabilities over the largest one
    rSums: cute.Tensor,  # f32 [SUMS] in registers: of all, and of what precedes each pivot; added to
    row: cutlass.Constexpr,  # the kernel
) -> None:
    """What the thread has of a part. Of all is no count."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad, rShare = (cute.make_rmem_tensor((QUAD,), f32) for _ in range(2))
    rLeast = cute.make_rmem_tensor((PICKS,), f32)
    scale = f32(0.0) if counts else f32(-math.log2(math.e))
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            token = u32(first + number * QUAD)
            has_pivot = cutlass.Boolean(False)
            for j in range_constexpr(PICKS):
                is_before = token + u32(QUAD - 1) < pivots[j].number
                rLeast[j] = pivots[j].least_before if is_before else pivots[j].least_behind
                has_pivot = has_pivot or (token ^ pivots[j].number) < u32(QUAD)
            for e in range_constexpr(QUAD):
                rShare[e] = cute.math.exp2((top - rQuad[e]) * scale, fastmath=True)
                rSums[0] += rShare[e]
                for j in range_constexpr(PICKS):
                    rSums[1 + j] += rShare[e] if rQuad[e] >= rLeast[j] else f32(0.0)
            if has_pivot:  # what of these four equals it, and is before it
                for j in range_constexpr(PICKS):
                    for e in range_constexpr(QUAD):
                        if rQuad[e] < rLeast[j] and precedes(rQuad[e], i32(token) + e, pivots[j]):
                            rSums[1 + j] += rShare[e]


@cute.jit
def sums_of_block(rSums: cute.Tensor, sSums: cute.Tensor) -> None:
    """rSums: f32 [SUMS] of each thread becomes that of all. sSums: f32 [SUMS, WARPS], which may be written again after
    the block's threads have met once more. Every thread of the block must call it."""
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    for j in range_constexpr(SUMS):
        total = cute.arch.warp_reduction(rSums[j], operator.add)
        if lane == 0:
            sSums[j, warp] = total
    cute.arch.sync_threads()
    for j in range_constexpr(SUMS):
        rSums[j] = f32(0.0)
        for i in range_constexpr(WARPS):
            rSums[j] += sSums[j, i]

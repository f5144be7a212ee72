"""Which row each (token, k) goes to: what the kernels of `moe_dispatch` share on the device.

A pair is a (token, k), numbered in ascending order. The pairs are cut into chunks, one a block; a chunk into parts, one
a warp; a part into 32 pairs at a time, one a lane. A pair's row is the sum of four numbers, each of which counts pairs
of the same expert that come before it, or rows of the experts before its own:

    where its expert's rows begin + those in earlier chunks + those of earlier warps + those that its warp met before

So rows are in ascending order of pairs by construction, and nothing depends on which block or warp is quick.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.compile.launch_policy import WARP
from optimized.kernels.grid_barrier import grid_barrier
from optimized.kernels.scan import sum_up_to_lane

THREADS = 512  # of a block; one counts each expert
WARPS = THREADS // WARP
MAX_EXPERTS = THREADS
_GROUPS = 16  # that share the chunks before a block's own, at most


def routing_bytes(num_experts: int, warps: int, *, chunked: bool) -> int:
    """Shared memory that routing takes of a block, at most."""
    partial = 2 * group_count(num_experts) * num_experts if chunked else 0
    return 4 * (warps * num_experts + num_experts + WARPS + partial) + 64  # 64: for alignment


def group_count(num_experts: int) -> int:
    """Groups of threads, one thread an expert, that a block has."""
    return min(_GROUPS, THREADS // num_experts)


def shared_counts(*shape: int) -> Any:
    """A tensor of int32 in shared memory, rows contiguous."""
    layout = cute.make_ordered_layout(shape, order=tuple(reversed(range(len(shape)))))
    return SmemAllocator().allocate_tensor(cutlass.Int32, layout)


@cute.jit
def place_of(pair: cutlass.Int32, per_token: cutlass.Constexpr) -> tuple[cutlass.Int32, cutlass.Int32]:
    """Token and k of a pair. It is not negative, and division of unsigned numbers is the shorter one."""
    number = cutlass.Uint32(pair)
    return cutlass.Int32(number // per_token), cutlass.Int32(number % per_token)


@cute.jit
def rank_pairs(
    mIds: cute.Tensor,  # i32 [T, K]
    first: cutlass.Int32,  # the chunk's first pair
    sCounts: cute.Tensor,  # i32 [warps, E]: becomes the pairs of each expert that each warp met
    items: cutlass.Constexpr,  # pairs of a thread
) -> tuple[cute.Tensor, cute.Tensor]:  # i32 [items] each
    """The expert of each of a thread's pairs (-1 if there is no such expert or pair), and how many pairs of it the warp
    met before. Warps beyond those of `sCounts` have none."""
    warps, num_experts = sCounts.shape
    per_token = mIds.shape[1]
    num_pairs = mIds.shape[0] * per_token
    lane = cute.arch.lane_idx()
    warp = cute.arch.warp_idx()
    rExpert = cute.make_rmem_tensor(items, cutlass.Int32)
    rRank = cute.make_rmem_tensor(items, cutlass.Int32)
    rExpert.fill(-1)
    rRank.fill(0)
    if warp < warps:
        for i in range_constexpr(items):
            pair = first + (warp * items + i) * WARP + lane
            if pair < num_pairs:
                expert = mIds[place_of(pair, per_token)]
                if expert >= 0 and expert < num_experts:
                    rExpert[i] = expert
        for i in range_constexpr(-(-num_experts // WARP)):
            expert = lane + i * WARP
            if expert < num_experts:
                sCounts[warp, expert] = 0
        cute.arch.sync_warp()
        for i in range_constexpr(items):
            expert = rExpert[i]
            same = cute.arch.match_sync(cute.arch.FULL_MASK, expert)
            earlier = cutlass.Int32(cute.arch.popc(same & cute.arch.lanemask_lt()))
            met = cutlass.Int32(0)
            if expert >= 0:
                met = sCounts[warp, expert]
            rRank[i] = met + earlier
            cute.arch.sync_warp()
            if expert >= 0 and earlier == 0:
                sCounts[warp, expert] = met + cutlass.Int32(cute.arch.popc(same))
            cute.arch.sync_warp()
    return rExpert, rRank


@cute.jit
def add_up_warps(
    sCounts: cute.Tensor,  # i32 [warps, E]: becomes what earlier warps met
) -> cutlass.Int32:
    """The pairs of expert e in the chunk, for thread e; 0 for threads beyond the last expert."""
    warps, num_experts = sCounts.shape
    expert, _, _ = cute.arch.thread_idx()
    total = cutlass.Int32(0)
    if expert < num_experts:
        rCounts = cute.make_rmem_tensor(warps, cutlass.Int32)
        for warp in range_constexpr(warps):
            rCounts[warp] = sCounts[warp, expert]
        for warp in range_constexpr(warps):
            sCounts[warp, expert] = total
            total += rCounts[warp]
    return total


@cute.jit
def begin_experts(
    total: cutlass.Int32,  # pairs of expert e in all chunks, for thread e
    before: cutlass.Int32,  # and in the chunks before this one
    mOffsets: cute.Tensor,  # i32 [E + 1]: written by block 0
    sBegin: cute.Tensor,  # i32 [E]: becomes the row of the chunk's first pair of each expert
    sSums: cute.Tensor,  # i32 [WARPS]
    tile: cutlass.Constexpr,
) -> None:
    """Where the rows of each expert begin, each expert's padded to a multiple of `tile`. Every thread must call it."""
    (num_experts,) = sBegin.shape
    expert, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    padded = (total + (tile - 1)) // tile * tile
    end = sum_up_to_lane(padded)
    if lane == WARP - 1:
        sSums[warp] = end
    cute.arch.sync_threads()
    for i in range_constexpr(-(-num_experts // WARP) - 1):
        if warp > i:
            end += sSums[i]
    if expert < num_experts:
        sBegin[expert] = end - padded + before
        if block == 0:
            mOffsets[expert + 1] = end
            if expert == 0:
                mOffsets[0] = 0
    cute.arch.sync_threads()


@cute.jit
def add_up_chunks(
    mCounts: cute.Tensor,  # i32 [blocks, E]: pairs of each chunk, by expert
    num_chunks: cutlass.Int32,
    sPartial: cute.Tensor,  # i32 [2, groups, E]
) -> tuple[cutlass.Int32, cutlass.Int32]:
    """The pairs of expert e in all chunks, and in those before this block's own, for thread e; 0 for threads beyond the
    last expert. Groups of threads share the chunks. Every thread must call it."""
    _, groups, num_experts = sPartial.shape
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    group, expert = thread // num_experts, thread % num_experts
    total = cutlass.Int32(0)
    before = cutlass.Int32(0)
    if group < groups:
        for chunk in cutlass.range(group, num_chunks, groups, unroll=8):
            count = mCounts[chunk, expert]
            total += count
            if chunk < block:
                before += count
        sPartial[0, group, expert] = total
        sPartial[1, group, expert] = before
    cute.arch.sync_threads()
    total = cutlass.Int32(0)
    before = cutlass.Int32(0)
    if thread < num_experts:
        for i in range_constexpr(groups):
            total += sPartial[0, i, thread]
            before += sPartial[1, i, thread]
    return total, before


@cute.jit
def route_over_blocks(
    mIds: cute.Tensor,  # i32 [T, K]
    mCounts: cute.Tensor,  # i32 [blocks, E]: scratch, each block writes its row of it before it is read
    mCounter: cute.Tensor,  # i32 [1]: of the barrier
    mOffsets: cute.Tensor,  # i32 [E + 1]
    mSrc: cute.Tensor,  # i32 [R]
    mRowOf: cute.Tensor,  # i32 [T, K]
    tile: cutlass.Constexpr,
    items: cutlass.Constexpr,  # pairs of a thread: blocks x THREADS x items are enough for all
) -> None:
    """Route all pairs, each block a chunk, with one grid barrier between counting and placing."""
    blocks, num_experts = mCounts.shape
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    sCounts = shared_counts(WARPS, num_experts)
    sBegin = shared_counts(num_experts)
    sSums = shared_counts(WARPS)
    sPartial = shared_counts(2, group_count(num_experts), num_experts)
    first = block * (THREADS * items)
    rExpert, rRank = rank_pairs(mIds, first, sCounts, items)
    for row in cutlass.range(block * THREADS + thread, mSrc.shape[0], blocks * THREADS, unroll=1):
        mSrc[row] = -1
    cute.arch.sync_threads()
    total = add_up_warps(sCounts)
    if thread < num_experts:
        mCounts[block, thread] = total
    grid_barrier(mCounter, blocks)

    per_token = mIds.shape[1]
    num_pairs = mIds.shape[0] * per_token
    num_chunks = cute.ceil_div(num_pairs, THREADS * items)
    if block < num_chunks:
        total, before = add_up_chunks(mCounts, num_chunks, sPartial)
        begin_experts(total, before, mOffsets, sBegin, sSums, tile)
        warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
        for i in range_constexpr(items):
            pair = first + (warp * items + i) * WARP + lane
            if pair < num_pairs:
                expert = rExpert[i]
                token, k = place_of(pair, per_token)
                row = cutlass.Int32(-1)
                if expert >= 0:
                    row = sBegin[expert] + sCounts[warp, expert] + rRank[i]
                    mSrc[row] = token
                mRowOf[token, k] = row

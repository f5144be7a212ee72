"""How the keys of a batch are cut, and which block of threads takes which part: what depends on lengths alone.

The keys of a request as one KV head holds them are a *strand* (one for each pass over the query rows). A strand is cut
into *splits* of a fixed number of keys, the last of which may be shorter, and splits are put together to *spans* of a
fixed number of splits. All splits of a batch stand in one line, request by request, strand by strand, and each block
takes as many of them as any other, one after another: its run.

What comes out of a strand is the same wherever runs begin: (((s0 + s1) + s2) + ...) within a span, and the spans of a
strand in the same way, where + is `paged_attention_merge.fold`. A block that has the whole of a span, or the beginning
of a strand, adds up what it can in that order, and leaves the rest for after the barrier.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.launch_policy import WARP

# What a cursor holds: a split, and the request that it belongs to. A strand is numbered within its request.
REQUEST, STRAND, SPLIT, SPLITS, LENGTH = range(5)
SPLIT_CURSOR = 5


@cute.jit
def splits_of(
    mQueryStart: cute.Tensor,  # i32 [R + 1]
    mSeqLens: cute.Tensor,  # i32 [R]
    request: cutlass.Int32,
    split: cutlass.Constexpr,
) -> cutlass.Int32:
    """Of one strand of a request; none without queries."""
    count = cutlass.Int32(0)
    if request < mSeqLens.shape[0]:  # noqa: SIM102, what is beyond is not read
        if mQueryStart[request + 1] > mQueryStart[request]:
            count = (cutlass.max(mSeqLens[request], 0) + (split - 1)) // split
    return count


@cute.jit
def sum_of_lanes(value: cutlass.Int32) -> cutlass.Int32:
    """Of this lane's and all before it."""
    for i in range_constexpr(5):
        below = cute.arch.shuffle_sync_up(value, 1 << i, mask_and_clamp=0)
        if cute.arch.lane_idx() >= (1 << i):
            value += below
    return value


@cute.jit
def number_splits(
    mQueryStart: cute.Tensor,  # i32 [R + 1]
    mSeqLens: cute.Tensor,  # i32 [R]
    sBegin: cute.Tensor,  # i32 [capacity + 2]: becomes, of one strand each, the splits before request 0 .. R
    sSums: cute.Tensor,  # i32 [warps, 2]
    split: cutlass.Constexpr,
) -> tuple[cutlass.Int32, cutlass.Int32]:
    """(splits of one strand of each request, those of the longest). Every thread of the block must call it."""
    warps = sSums.shape[0]
    thread, _, _ = cute.arch.thread_idx()
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    num_requests = mSeqLens.shape[0]
    total, longest = cutlass.Int32(0), cutlass.Int32(0)
    for first in cutlass.range(0, num_requests, warps * WARP, unroll=1):
        request = first + thread
        count = splits_of(mQueryStart, mSeqLens, request, split)
        end = sum_of_lanes(count)
        most = cute.arch.warp_reduction(count, cutlass.max)
        if lane == WARP - 1:
            sSums[warp, 0] = end
            sSums[warp, 1] = most
        cute.arch.sync_threads()
        before = total
        for i in range_constexpr(warps):
            if warp > i:
                before += sSums[i, 0]
            total += sSums[i, 0]
            longest = cutlass.max(longest, sSums[i, 1])
        if request < num_requests:
            sBegin[request] = before + end - count
        cute.arch.sync_threads()
    if thread == 0:
        sBegin[num_requests] = total
        sBegin[num_requests + 1] = cutlass.Int32(2**31 - 1)  # unlike any: who looks for the next request stops here
    cute.arch.sync_threads()
    return total, longest


@cute.jit
def run_begin(block: cutlass.Int32, total: cutlass.Int32, blocks: cutlass.Constexpr) -> cutlass.Int32:
    """Where in the line of all splits a block's run begins; of block `blocks`, where the last one ends."""
    return block * (total // blocks) + cutlass.min(block, total % blocks)


@cute.jit
def block_of(index: cutlass.Int32, total: cutlass.Int32, blocks: cutlass.Constexpr) -> cutlass.Int32:
    """The block in whose run a split is."""
    few, longer = total // blocks, total % blocks
    block = index // (few + 1)
    if block >= longer:
        block = longer + (index - longer * (few + 1)) // cutlass.max(few, 1)
    return block


@cute.jit
def point_at(
    cursor: cute.Tensor,  # i32 in registers
    index: cutlass.Int32,  # in the line of all splits
    sBegin: cute.Tensor,
    mSeqLens: cute.Tensor,
    strands: cutlass.Constexpr,  # of a request
) -> None:
    """The last request that begins at or before the split, which is the one that has it."""
    before = index // strands
    low, high = cutlass.Int32(0), mSeqLens.shape[0] - 1
    while low < high:
        middle = (low + high + 1) // 2
        if sBegin[middle] <= before:
            low = middle
        else:
            high = middle - 1
    enter(cursor, low, sBegin, mSeqLens)
    within = index - sBegin[low] * strands
    cursor[STRAND] = within // cursor[SPLITS]
    cursor[SPLIT] = within % cursor[SPLITS]


@cute.jit
def enter(cursor: cute.Tensor, request: cutlass.Int32, sBegin: cute.Tensor, mSeqLens: cute.Tensor) -> None:
    """A request's first split."""
    cursor[REQUEST] = request
    cursor[STRAND] = 0
    cursor[SPLIT] = 0
    cursor[SPLITS] = sBegin[request + 1] - sBegin[request]
    cursor[LENGTH] = mSeqLens[request]


@cute.jit
def move_on(cursor: cute.Tensor, sBegin: cute.Tensor, mSeqLens: cute.Tensor, strands: cutlass.Constexpr) -> None:
    """To the next split in the line, if there is one."""
    cursor[SPLIT] = cursor[SPLIT] + 1
    if cursor[SPLIT] == cursor[SPLITS]:
        cursor[SPLIT] = 0
        cursor[STRAND] = cursor[STRAND] + 1
        if cursor[STRAND] == strands:
            request = cursor[REQUEST] + 1
            while sBegin[request] == sBegin[request + 1]:
                request += 1
            if request < mSeqLens.shape[0]:
                enter(cursor, request, sBegin, mSeqLens)

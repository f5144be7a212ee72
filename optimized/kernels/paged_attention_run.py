"""A block of paged decode attention at work: its run of splits, one after another, while the next ones are fetched."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.compile.launch_policy import WARP
from optimized.kernels.paged_attention_chunk import (
    CURSOR,
    LEFT,
    STEP,
    attend,
    begin_fetches,
    fetch_next,
    first_key,
    load_queries,
    next_stage,
)
from optimized.kernels.paged_attention_launch import CHUNK, EXCHANGE_PADDING, HALF, TILE
from optimized.kernels.paged_attention_merge import destination, settle
from optimized.kernels.paged_attention_split import (
    LENGTH,
    SPLIT,
    SPLIT_CURSOR,
    SPLITS,
    move_on,
    point_at,
    run_begin,
)
from optimized.kernels.paged_attention_sum import CHANNELS, add_up_warps, exchange, queries_of
from optimized.kernels.paged_attention_sum import LENGTH as LENGTH_OF_SUM


def shared(dtype: Any, *shape: int) -> Any:
    """A tensor in shared memory, rows contiguous."""
    layout = cute.make_ordered_layout(shape, order=tuple(reversed(range(len(shape)))))
    return SmemAllocator().allocate_tensor(dtype, layout, byte_alignment=128)


@cute.jit
def attend_run(
    sRing: cute.Tensor,  # [warps, stages, 2, CHUNK * D]
    sBegin: cute.Tensor,  # i32 [capacity + 2]: see `number_splits`
    total: cutlass.Int32,  # splits of all strands
    mQ: cute.Tensor,  # [T, Nq, D]
    mKCache: cute.Tensor,  # [B, Nkv, bs, D]
    mVCache: cute.Tensor,  # [B, Nkv, bs, D]
    mTable: cute.Tensor,  # i32 [R, M]
    mQueryStart: cute.Tensor,  # i32 [R + 1]
    mSeqLens: cute.Tensor,  # i32 [R]
    mKept: cute.Tensor,  # f32 [blocks * slots, rows, D + 4]
    mOut: cute.Tensor,  # [T, Nq, D]
    at: cutlass.Constexpr,  # the kernel
) -> None:
    """Strands that a block has whole are written to mOut, what it has of others is kept."""
    block, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    rows, halves = min(at.rows, HALF), -(-at.rows // HALF)
    sQ = shared(mQ.element_type, at.tiles * TILE * at.head_dim)
    sWarps = shared(cutlass.Float32, at.warps, rows, at.head_dim + EXCHANGE_PADDING)
    sWarpStats = shared(cutlass.Float32, at.warps, rows, 2)
    sSums = shared(cutlass.Float32, LENGTH_OF_SUM, 2, halves, at.pieces, at.threads)
    rLast = cute.make_rmem_tensor((2, at.tiles), cutlass.Int32)
    rMax, rSum = (cute.make_rmem_tensor((2, at.tiles), cutlass.Float32) for _ in range(2))
    rOut = cute.make_rmem_tensor((4, at.head_dim // 8, at.tiles), cutlass.Float32)
    fetched = cute.make_rmem_tensor(CURSOR, cutlass.Int32)
    cursor = cute.make_rmem_tensor(SPLIT_CURSOR, cutlass.Int32)
    stage, kept = cutlass.Int32(0), cutlass.Int32(0)
    first, last = run_begin(block, total, at.blocks), run_begin(block + 1, total, at.blocks)

    if first < last:
        point_at(cursor, first, sBegin, mSeqLens, at.strands)
        begin_fetches(fetched, cursor, last - first, mTable, at)
        fetch = (sRing[warp, None, None, None], fetched, mKCache, mVCache, mTable, mSeqLens, sBegin, at)
        begin_run(fetch, (mQ, sQ, rLast, cursor, mQueryStart, at))
        for index in cutlass.range(first, last, unroll=1):
            begin = cutlass.max(cursor[SPLIT] - (index - first), 0)
            end = cutlass.min(cursor[SPLIT] + (last - index), cursor[SPLITS])
            if index > first and cursor[SPLIT] == 0:
                load_queries(mQ, sQ, rLast, cursor, mQueryStart, at)
                kept = cutlass.Int32(0)
            rMax.fill(-cutlass.Float32.inf)
            rSum.fill(0)
            rOut.fill(0)
            for step in cutlass.range(at.steps, unroll=1):
                cute.arch.sync_warp()  # all lanes are done with the stage that comes next
                fetch_next(*fetch)
                cute.arch.cp_async_wait_group(at.stages - 1)
                cute.arch.sync_warp()  # what each lane has fetched is there for all
                position = first_key(cursor, step, at)
                if position < cursor[LENGTH]:
                    sKeys, sValues = (sRing[warp, stage, side, None].iterator for side in range(2))
                    attend(sKeys, sValues, sQ.iterator, rLast, rMax, rSum, rOut, position, at)
                stage = next_stage(stage, at)
            to, alone = destination(cursor, begin, end, kept, at)
            if to >= 0:
                kept += 1
            place = (mKept, mOut, mQueryStart, cursor, begin, to, alone)
            for half in range_constexpr(halves):
                exchange(rMax, rSum, rOut, sWarps, sWarpStats, half // 2, half % 2, at)
                cute.arch.sync_threads()
                finish_half(sWarps, sWarpStats, sSums, place, half, at)
                cute.arch.sync_threads()
            if index + 1 < last:
                move_on(cursor, sBegin, mSeqLens, at.strands)
        cute.arch.cp_async_wait_group(0)


@cute.jit
def begin_run(fetch: Any, queries: Any) -> None:
    """Queries, and all chunks but one that there is room for. fetch, queries: what `fetch_next` and `load_queries` are
    called with."""
    _, fetched, *_ = fetch
    *_, mQueryStart, at = queries
    if const_expr(not at.pdl):
        load_queries(*queries)  # while the number of the first block is on its way
    for _ in range_constexpr(at.stages - 1):
        if const_expr(at.pdl):
            wait_for_new_keys(fetched, mQueryStart, at)
        fetch_next(*fetch)
    if const_expr(at.pdl):
        cute.arch.griddepcontrol_wait()
        load_queries(*queries)


@cute.jit
def wait_for_new_keys(
    fetched: cute.Tensor,  # i32 [CURSOR]
    mQueryStart: cute.Tensor,  # i32 [R + 1]
    at: cutlass.Constexpr,
) -> None:
    """Programmatic dependent launch: a warp whose next chunk holds keys of the request's own queries, or ends with it,
    waits for the launch before this one, which writes them. Those before them are there: see `paged_attention`."""
    if fetched[LEFT] > 0:
        _, num_queries = queries_of(mQueryStart, fetched)
        if first_key(fetched, fetched[STEP], at) + CHUNK > fetched[LENGTH] - num_queries:
            cute.arch.griddepcontrol_wait()


@cute.jit
def finish_half(
    sWarps: cute.Tensor,  # f32 [warps, HALF, D + padding]: what each warp has of eight rows
    sWarpStats: cute.Tensor,  # f32 [warps, HALF, 2]
    sSums: cute.Tensor,  # f32 [LENGTH_OF_SUM, 2, halves, pieces, threads]: of spans and strands, each thread's own
    place: Any,
    half: cutlass.Constexpr,  # which eight rows
    at: cutlass.Constexpr,
) -> None:
    """A split's result, and where it goes."""
    thread, _, _ = cute.arch.thread_idx()
    for j in range_constexpr(at.pieces):
        number = cutlass.Uint32(thread + j * at.threads)
        row = cutlass.Int32(number // (at.head_dim // CHANNELS))
        piece = cutlass.Int32(number % (at.head_dim // CHANNELS))
        if row < min(HALF, at.rows - half * HALF):
            rX = cute.make_rmem_tensor(LENGTH_OF_SUM, cutlass.Float32)
            add_up_warps(sWarps, sWarpStats, row, piece, rX)
            settle(rX, sSums[None, None, half, j, thread], *place, half * HALF + row, piece, at)


@cute.jit
def clear_idle(
    mQueryStart: cute.Tensor,  # i32 [R + 1]
    mSeqLens: cute.Tensor,  # i32 [R]
    mOut: cute.Tensor,  # [T, Nq, D]
    at: cutlass.Constexpr,  # the kernel
) -> None:
    """0 for queries of requests without keys, and for rows that are no request's."""
    block, _, _ = cute.arch.block_idx()
    first = block * at.warps + cute.arch.warp_idx()
    step = at.blocks * at.warps
    num_requests = mSeqLens.shape[0]
    for request in cutlass.range(first, num_requests, step, unroll=1):
        if mSeqLens[request] <= 0:
            for token in cutlass.range(mQueryStart[request], mQueryStart[request + 1], unroll=1):
                clear_token(mOut, token, at)
    for token in cutlass.range(mQueryStart[num_requests] + first, mOut.shape[0], step, unroll=1):
        clear_token(mOut, token, at)


@cute.jit
def clear_token(mOut: cute.Tensor, token: cutlass.Int32, at: cutlass.Constexpr) -> None:
    pieces = at.head_dim // CHANNELS
    rZero = cute.make_rmem_tensor(CHANNELS, mOut.element_type)
    rZero.fill(0)
    for item in cutlass.range(cute.arch.lane_idx(), at.num_heads * pieces, WARP, unroll=1):
        gHead = cute.zipped_divide(mOut[token, item // pieces, None], (CHANNELS,))
        cute.autovec_copy(rZero, gHead[None, item % pieces])

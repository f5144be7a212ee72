"""What a warp of paged decode attention does alone: fetch its keys and values, and attend to 16 of them at a time.

A warp has a ring of its own in shared memory, so that no other warp is waited for. Keys of a chunk are rows of it, in
pieces of 16 bytes; piece c of row r lies at place c ^ (r % 8), so that eight rows that are read at once lie in
different banks.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.paged_attention_launch import CHUNK, TILE
from optimized.kernels.paged_attention_split import LENGTH, REQUEST, SPLIT, SPLIT_CURSOR, STRAND, move_on
from optimized.kernels.precise import product
from optimized.ptx.cp_async import copy_async
from optimized.ptx.cvt_pair import split_pair
from optimized.ptx.ldmatrix import load_matrices
from optimized.ptx.mma_sync import mma_16x8x16

PIECE = 8  # elements of 16 bytes
# What the cursor of a warp's fetches holds beside a split: the chunk within the warp's part of it, the stage of the
# ring that comes next, the block of the cache, and how many chunks are left of the run.
STEP, STAGE, BLOCK, LEFT = range(SPLIT_CURSOR, SPLIT_CURSOR + 4)
CURSOR = SPLIT_CURSOR + 4
# By what probabilities are multiplied, all of a result's alike: float16 has no number between 0 and 2^-24, and many
# keys whose probabilities are of that size come to something. Bfloat16 reaches as far as float32.
_LIFT = {"float16": 2.0**15}


@cute.jit
def first_key(cursor: cute.Tensor, step: cutlass.Int32, at: cutlass.Constexpr) -> cutlass.Int32:
    """Of a chunk of this warp's part of a split."""
    return cursor[SPLIT] * at.split + (cute.arch.warp_idx() * at.steps + step) * CHUNK


@cute.jit
def look_up(fetched: cute.Tensor, mTable: cute.Tensor, at: cutlass.Constexpr) -> None:
    """The block of the next chunk, early, since the chunk's addresses wait for it."""
    position = first_key(fetched, fetched[STEP], at)
    if position < fetched[LENGTH]:
        fetched[BLOCK] = mTable[fetched[REQUEST], cutlass.Uint32(position) // at.block_size]


@cute.jit
def begin_fetches(
    fetched: cute.Tensor,  # i32 [CURSOR] in registers
    cursor: cute.Tensor,  # where the run begins
    splits: cutlass.Int32,  # of the run
    mTable: cute.Tensor,
    at: cutlass.Constexpr,
) -> None:
    for i in range_constexpr(SPLIT_CURSOR):
        fetched[i] = cursor[i]
    fetched[STEP], fetched[STAGE], fetched[BLOCK] = 0, 0, 0
    fetched[LEFT] = splits * at.steps
    look_up(fetched, mTable, at)


@cute.jit
def fetch_next(
    sRing: cute.Tensor,  # [stages, 2, CHUNK * D]: this warp's
    fetched: cute.Tensor,  # i32 [CURSOR] in registers
    mKCache: cute.Tensor,  # [B, Nkv, bs, D]
    mVCache: cute.Tensor,  # [B, Nkv, bs, D]
    mTable: cute.Tensor,  # i32 [R, M]
    mSeqLens: cute.Tensor,  # i32 [R]
    sBegin: cute.Tensor,
    at: cutlass.Constexpr,
) -> None:
    """Begin to fetch the warp's next chunk, if there is one, as a group of its own. Nothing is read beyond the length:
    zeros stand there."""
    if fetched[LEFT] > 0:
        position = first_key(fetched, fetched[STEP], at)
        count = fetched[LENGTH] - position
        if count > 0:
            head = fetched[STRAND] % at.num_kv_heads
            offset = cutlass.Int32(cutlass.Uint32(position) % at.block_size)
            for side, mCache in enumerate((mKCache, mVCache)):
                gHead = mCache[fetched[BLOCK], head, None, None]  # [bs, D]
                fetch_rows(sRing[fetched[STAGE], side, None].iterator, gHead, offset, count, at)
        fetched[LEFT] = fetched[LEFT] - 1
        fetched[STEP] = fetched[STEP] + 1
        if fetched[STEP] == at.steps:
            fetched[STEP] = 0
            if fetched[LEFT] > 0:
                move_on(fetched, sBegin, mSeqLens, at.strands)
        if fetched[LEFT] > 0:
            look_up(fetched, mTable, at)
    fetched[STAGE] = next_stage(fetched[STAGE], at)
    cute.arch.cp_async_commit_group()


@cute.jit
def next_stage(stage: cutlass.Int32, at: cutlass.Constexpr) -> cutlass.Int32:
    return cutlass.Int32(0) if stage == at.stages - 1 else stage + 1


@cute.jit
def fetch_rows(
    sRows: cute.Pointer,  # [CHUNK, D]
    gHead: cute.Tensor,  # [bs, D]
    offset: cutlass.Int32,  # of the first row
    count: cutlass.Int32,  # rows that there are
    at: cutlass.Constexpr,
) -> None:
    """The rows of a chunk, of K or of V."""
    lane = cute.arch.lane_idx()
    pieces = at.head_dim // PIECE
    for i in range_constexpr(CHUNK * pieces // WARP):
        item = cutlass.Uint32(lane + i * WARP)
        row, piece = cutlass.Int32(item // pieces), cutlass.Int32(item % pieces)
        target = sRows + (row * at.head_dim + (piece ^ (row % 8)) * PIECE)
        source = gHead.iterator + ((offset + row) * at.head_dim + piece * PIECE)
        if const_expr(at.is_aligned):
            copy_async(target, source, 16, valid=cutlass.Int32(row < count) * 16, fetch_ahead=True)
        else:
            sPiece = cute.make_tensor(target, cute.make_layout(PIECE))
            gPiece = cute.make_tensor(source, cute.make_layout(PIECE))
            for e in range_constexpr(PIECE):
                value = sPiece.element_type(0.0)
                if row < count:
                    value = gPiece[e]
                sPiece[e] = value


@cute.jit
def load_queries(
    mQ: cute.Tensor,  # [T, Nq, D]
    sQ: cute.Tensor,  # [tiles * TILE * D]
    rLast: cute.Tensor,  # i32 [2, tiles]: becomes the last key that each of the thread's rows sees
    cursor: cute.Tensor,
    mQueryStart: cute.Tensor,  # i32 [R + 1]
    at: cutlass.Constexpr,
) -> None:
    """The query rows of a strand: those of its group of heads, for each of the request's queries. 0 where none is.
    Every thread of the block must call it."""
    thread, _, _ = cute.arch.thread_idx()
    first = mQueryStart[cursor[REQUEST]]
    num_queries = mQueryStart[cursor[REQUEST] + 1] - first
    pieces = at.head_dim // PIECE
    for i in range_constexpr(-(-at.tiles * TILE * pieces // at.threads)):
        item = thread + i * at.threads
        row, piece = item // pieces, item % pieces
        if item < at.tiles * TILE * pieces:
            rPiece = cute.make_rmem_tensor(PIECE, mQ.element_type)
            rPiece.fill(0)
            query, head = query_and_head(cursor[STRAND], row, at)
            if row < at.rows and query < num_queries:
                cute.autovec_copy(cute.zipped_divide(mQ[first + query, head, None], (PIECE,))[None, piece], rPiece)
            cute.autovec_copy(rPiece, cute.zipped_divide(sQ, (PIECE,))[None, row * pieces + (piece ^ (row % 8))])
    for tile in range_constexpr(at.tiles):
        for half in range_constexpr(2):
            query, _ = query_and_head(cursor[STRAND], tile * TILE + half * 8 + cute.arch.lane_idx() // 4, at)
            rLast[half, tile] = -1
            if query < num_queries:
                rLast[half, tile] = cursor[LENGTH] - num_queries + query
    cute.arch.sync_threads()


def place(even: int, odd: cutlass.Int32, lane: cutlass.Int32, at: Any) -> cutlass.Int32:
    """Where a lane's row has its piece even + odd (0 or 1): see above. Eight pieces further on it is eight places
    further on; a compiler that does not see that keeps an address of each in a register."""
    if at.spares_registers:
        return even // 8 * 8 + ((even % 8 + odd) ^ (lane % 8))
    return (even + odd) ^ (lane % 8)


@cute.jit
def query_and_head(
    strand: cutlass.Int32, row: cutlass.Int32, at: cutlass.Constexpr
) -> tuple[cutlass.Int32, cutlass.Int32]:
    """Which of the request's queries, and which of all query heads, a row of a strand is. Of a row that is no head's
    the query is beyond the last."""
    number = cutlass.Uint32(row)
    if const_expr(at.passes > 1):
        number += cutlass.Uint32(strand) // at.num_kv_heads * at.rows
    kv_head = cutlass.Uint32(strand) % at.num_kv_heads
    query = cutlass.Int32(number // at.group)
    head = cutlass.Int32(kv_head * at.group + number % at.group)
    return query, head


@cute.jit
def attend(
    sKeys: cute.Pointer,  # [CHUNK, D]
    sValues: cute.Pointer,  # [CHUNK, D]
    sQueries: cute.Pointer,  # [tiles * TILE, D]
    rLast: cute.Tensor,
    rMax: cute.Tensor,  # f32 [2, tiles]: the largest score of each row so far, times log2(e)
    rSum: cute.Tensor,  # f32 [2, tiles]: of this thread's probabilities so far, relative to that, times _LIFT
    rOut: cute.Tensor,  # f32 [4, D / 8, tiles]: the sums so far that they weight: fragments of C
    position: cutlass.Int32,  # of the first key
    at: cutlass.Constexpr,
) -> None:
    """Sixteen keys more."""
    lane = cute.arch.lane_idx()
    zero = cutlass.Float32(0.0)
    scores = [[(zero,) * 4, (zero,) * 4] for _ in range(at.tiles)]
    key_row, key_piece = lane // 16 * 8 + lane % 8, lane // 8 % 2
    query_row, query_piece = lane % 16, lane // 16  # of values too
    for k in range_constexpr(at.head_dim // 16):
        keys = load_matrices(
            sKeys + (key_row * at.head_dim + place(2 * k, key_piece, lane, at) * PIECE), transposed=False
        )
        for tile in range_constexpr(at.tiles):
            row = tile * TILE + query_row
            queries = load_matrices(
                sQueries + (row * at.head_dim + place(2 * k, query_piece, lane, at) * PIECE), transposed=False
            )
            for n in range_constexpr(2):
                scores[tile][n] = mma_16x8x16(scores[tile][n], queries, keys[2 * n : 2 * n + 2], at.dtype)

    weights = []
    for tile in range_constexpr(at.tiles):
        weights.append(weigh(scores[tile], rLast, rMax, rSum, rOut, position, tile, at))

    for k in range_constexpr(at.head_dim // 16):
        values = load_matrices(
            sValues + (query_row * at.head_dim + place(2 * k, query_piece, lane, at) * PIECE), transposed=True
        )
        for tile in range_constexpr(at.tiles):
            for n in range_constexpr(2):
                out = [rOut[i, 2 * k + n, tile] for i in range(4)]
                for part in range_constexpr(2):
                    out = mma_16x8x16(out, weights[tile][part], values[2 * n : 2 * n + 2], at.dtype)
                for i in range_constexpr(4):
                    rOut[i, 2 * k + n, tile] = out[i]


@cute.jit
def weigh(
    scores: Any,  # two fragments of C: q k of eight keys each
    rLast: cute.Tensor,
    rMax: cute.Tensor,
    rSum: cute.Tensor,
    rOut: cute.Tensor,
    position: cutlass.Int32,
    tile: cutlass.Constexpr,
    at: cutlass.Constexpr,
) -> Any:  # two fragments of A, whose sum the probabilities are
    """Scores to probabilities relative to the largest score so far, and what was summed up before relative to that."""
    lane = cute.arch.lane_idx()
    rWeights = cute.make_rmem_tensor((4, 2), cutlass.Float32)  # element of a fragment, and which one
    for half in range_constexpr(2):
        largest = rMax[half, tile]
        for n in range_constexpr(2):
            for i in range_constexpr(2 * half, 2 * half + 2):
                score = product(scores[n][i], at.scale_log2)
                if position + (n * 8 + lane % 4 * 2 + i % 2) > rLast[half, tile]:
                    score = -cutlass.Float32.inf
                rWeights[i, n] = score
                largest = cute.arch.fmax(largest, score)
        largest = cute.arch.warp_reduction(largest, cute.arch.fmax, threads_in_group=4)
        shift = finite(largest)
        before = cute.math.exp2(rMax[half, tile] - shift, fastmath=True)
        rMax[half, tile] = largest
        total = cutlass.Float32(0.0)
        for n in range_constexpr(2):
            for i in range_constexpr(2 * half, 2 * half + 2):
                rWeights[i, n] = cute.math.exp2(rWeights[i, n] - shift, fastmath=True)
                if const_expr(at.dtype in _LIFT):
                    rWeights[i, n] = rWeights[i, n] * _LIFT[at.dtype]
                total += rWeights[i, n]
        rSum[half, tile] = cute.math.fma(rSum[half, tile], before, total)
        for d in range_constexpr(at.head_dim // 8):
            for i in range_constexpr(2 * half, 2 * half + 2):
                rOut[i, d, tile] = product(rOut[i, d, tile], before)
    parts = [
        split_pair(rWeights[2 * half, n], rWeights[2 * half + 1, n], at.dtype) for n in range(2) for half in range(2)
    ]
    return [part[0] for part in parts], [part[1] for part in parts]


@cute.jit
def finite(largest: cutlass.Float32) -> cutlass.Float32:
    """What scores are taken relative to: 0 where there is none."""
    return cutlass.Float32(0.0) if largest == -cutlass.Float32.inf else largest

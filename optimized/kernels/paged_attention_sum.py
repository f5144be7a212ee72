"""Sums of results of paged decode attention, a few channels at a time.

A result is (m, l, x): the largest score of a query row, times log2(e); the sum of its probabilities relative to that;
and the sum of values weighted by them. It is handled in pieces of four channels, each by a thread of its own, with m
and l of its row.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.kernels.paged_attention_chunk import finite, query_and_head
from optimized.kernels.paged_attention_launch import HALF, TILE
from optimized.kernels.paged_attention_split import REQUEST, STRAND
from optimized.kernels.precise import product

CHANNELS = 4  # of a piece
LENGTH = CHANNELS + 2  # of a piece with m and l


@cute.jit
def fold(
    rX: cute.Tensor,  # f32 [LENGTH] in registers: x, m, l; becomes the sum
    rY: cute.Tensor,  # f32 [LENGTH]: what comes behind it
) -> None:
    """Nothing is (-inf, 0, 0); what is added to it comes out as it is. Nothing here is left to the compiler to fuse."""
    largest = cute.arch.fmax(rX[CHANNELS], rY[CHANNELS])
    shift = finite(largest)
    of_x = cute.math.exp2(rX[CHANNELS] - shift, fastmath=True)
    of_y = cute.math.exp2(rY[CHANNELS] - shift, fastmath=True)
    rX[CHANNELS] = largest
    rX[CHANNELS + 1] = cute.math.fma(rY[CHANNELS + 1], of_y, product(rX[CHANNELS + 1], of_x))
    for i in range_constexpr(CHANNELS):
        rX[i] = cute.math.fma(rY[i], of_y, product(rX[i], of_x))


@cute.jit
def clear(rX: cute.Tensor) -> None:
    """To nothing."""
    rX.fill(0)
    rX[CHANNELS] = -cutlass.Float32.inf


@cute.jit
def copy(source: cute.Tensor, target: cute.Tensor) -> None:
    for i in range_constexpr(LENGTH):
        target[i] = source[i]


@cute.jit
def load_piece(mRow: cute.Tensor, piece: cutlass.Int32, rX: cute.Tensor) -> None:
    """mRow: f32 [D + 4], m and l behind the channels."""
    gRow = cute.zipped_divide(mRow, (CHANNELS,))
    rBoth = cute.make_rmem_tensor(CHANNELS, cutlass.Float32)
    cute.autovec_copy(gRow[None, piece], rBoth)
    for i in range_constexpr(CHANNELS):
        rX[i] = rBoth[i]
    cute.autovec_copy(gRow[None, cute.size(mRow) // CHANNELS - 1], rBoth)
    rX[CHANNELS], rX[CHANNELS + 1] = rBoth[0], rBoth[1]


@cute.jit
def store_piece(rX: cute.Tensor, mRow: cute.Tensor, piece: cutlass.Int32) -> None:
    gRow = cute.zipped_divide(mRow, (CHANNELS,))
    rBoth = cute.make_rmem_tensor(CHANNELS, cutlass.Float32)
    for i in range_constexpr(CHANNELS):
        rBoth[i] = rX[i]
    cute.autovec_copy(rBoth, gRow[None, piece])
    if piece == 0:
        rBoth.fill(0)
        rBoth[0], rBoth[1] = rX[CHANNELS], rX[CHANNELS + 1]
        cute.autovec_copy(rBoth, gRow[None, cute.size(mRow) // CHANNELS - 1])


@cute.jit
def queries_of(mQueryStart: cute.Tensor, cursor: cute.Tensor) -> tuple[cutlass.Int32, cutlass.Int32]:
    """(the first one, how many) of the request that the cursor is at."""
    first = mQueryStart[cursor[REQUEST]]
    return first, mQueryStart[cursor[REQUEST] + 1] - first


@cute.jit
def write_piece(
    rX: cute.Tensor,
    mOut: cute.Tensor,  # [T, Nq, D]
    first: cutlass.Int32,  # query
    num_queries: cutlass.Int32,
    cursor: cute.Tensor,
    row: cutlass.Int32,
    piece: cutlass.Int32,
    at: cutlass.Constexpr,
) -> None:
    """x / l, rounded once; 0 for a query that sees no key. Rows that are no query's are left out."""
    query, head = query_and_head(cursor[STRAND], row, at)
    if query < num_queries:
        scale = cutlass.Float32(0.0)
        if rX[CHANNELS + 1] != 0.0:
            scale = 1.0 / rX[CHANNELS + 1]
        rOut = cute.make_rmem_tensor(CHANNELS, mOut.element_type)
        for i in range_constexpr(CHANNELS):
            rOut[i] = (rX[i] * scale).to(mOut.element_type)
        cute.autovec_copy(rOut, cute.zipped_divide(mOut[first + query, head, None], (CHANNELS,))[None, piece])


@cute.jit
def exchange(
    rMax: cute.Tensor,  # f32 [2, tiles]: a warp's results, see `paged_attention_chunk.attend`
    rSum: cute.Tensor,
    rOut: cute.Tensor,  # f32 [4, D / 8, tiles]
    sWarps: cute.Tensor,  # f32 [warps, HALF, D + padding]
    sWarpStats: cute.Tensor,  # f32 [warps, HALF, 2]
    tile: cutlass.Constexpr,
    half: cutlass.Constexpr,
    at: cutlass.Constexpr,
) -> None:
    """Eight rows of each warp's results to where all threads find them."""
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    row, column = lane // 4, lane % 4 * 2
    total = cute.arch.warp_reduction_sum(rSum[half, tile], threads_in_group=4)
    if tile * TILE + half * HALF + row < at.rows:
        rPair = cute.make_rmem_tensor(2, cutlass.Float32)
        for d in range_constexpr(at.head_dim // 8):
            rPair[0], rPair[1] = rOut[2 * half, d, tile], rOut[2 * half + 1, d, tile]
            gRow = cute.zipped_divide(sWarps[warp, row, None], (2,))
            cute.autovec_copy(rPair, gRow[None, d * 4 + column // 2])
        if column == 0:
            sWarpStats[warp, row, 0] = rMax[half, tile]
            sWarpStats[warp, row, 1] = total


@cute.jit
def add_up_warps(
    sWarps: cute.Tensor,
    sWarpStats: cute.Tensor,
    row: cutlass.Int32,  # of eight
    piece: cutlass.Int32,
    rX: cute.Tensor,  # f32 [LENGTH]: becomes the split's result
) -> None:
    warps = sWarps.shape[0]
    largest = sWarpStats[0, row, 0]
    for i in range_constexpr(1, warps):
        largest = cute.arch.fmax(largest, sWarpStats[i, row, 0])
    shift = finite(largest)
    rX.fill(0)
    rX[CHANNELS] = largest
    rWarp = cute.make_rmem_tensor(CHANNELS, cutlass.Float32)
    for i in range_constexpr(warps):
        weight = cute.math.exp2(sWarpStats[i, row, 0] - shift, fastmath=True)
        rX[CHANNELS + 1] = cute.math.fma(sWarpStats[i, row, 1], weight, rX[CHANNELS + 1])
        cute.autovec_copy(cute.zipped_divide(sWarps[i, row, None], (CHANNELS,))[None, piece], rWarp)
        for j in range_constexpr(CHANNELS):
            rX[j] = cute.math.fma(rWarp[j], weight, rX[j])

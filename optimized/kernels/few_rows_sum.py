"""What `few_rows` computes: a warp's products from its ring, the sum over warps, and the results.

Sums of a unit are exchanged through shared memory, PASS_TILES tiles of x's rows at a time, in one of two buffers by
turns: so threads meet once a pass, and none overwrites what another still reads.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.kernels.few_rows_launch import CHUNK_BYTES, PASS_TILES, WARPS, column_floats
from optimized.ptx.cvt_pair import rounded_pair
from optimized.ptx.mma_sync import mma_16x8x16
from optimized.ptx.words import load_shared_words

_HALF = CHUNK_BYTES // 2
_MOST_EARLY = 8  # registers


def pass_tiles(kernel: Any) -> int:
    return min(kernel.row_tiles, PASS_TILES)


def passes(kernel: Any) -> int:
    return kernel.row_tiles // pass_tiles(kernel)


def results_of_pass(kernel: Any) -> int:
    """Of a thread."""
    return -(-8 * pass_tiles(kernel) * kernel.part_rows // kernel.threads)


def results(kernel: Any) -> int:
    """Of a thread and a unit."""
    return passes(kernel) * results_of_pass(kernel)


def shared_sums(kernel: Any) -> cute.Tensor:  # f32 [2, warps, rows of x, rows of the weight]
    columns, column = 8 * pass_tiles(kernel), column_floats(kernel.tiles)
    strides = WARPS * columns * column, columns * column, column, 1
    layout = cute.make_layout((2, WARPS, columns, 16 * kernel.tiles), stride=strides)
    return SmemAllocator().allocate_tensor(cutlass.Float32, layout, byte_alignment=16)


def shared_squares(kernel: Any) -> Any:  # f32 [warps, rows of x], for a norm
    if not kernel.has_norm:
        return None
    layout = cute.make_layout((WARPS, 8 * kernel.row_tiles), stride=(8 * kernel.row_tiles, 1))
    return SmemAllocator().allocate_tensor(cutlass.Float32, layout)


@cute.jit
def place_x(kernel: cutlass.Constexpr, num_rows: cutlass.Int32, rX_place: cute.Tensor) -> None:
    """Where in a stage's rows of x this lane's parts of the tiles are. Rows that do not exist are the last one."""
    for tile in range_constexpr(kernel.row_tiles):
        rX_place[tile] = _place(cutlass.min(tile * 8 + cute.arch.lane_idx() // 4, num_rows - 1))


def _place(row: Any) -> Any:
    """Bytes to a lane's 16 of the first 64 of a row; those of the next 64 are where bit 6 is the other."""
    return row * CHUNK_BYTES + (cute.arch.lane_idx() % 4 * 16 ^ row % 2 * _HALF)


@cute.jit
def multiply(
    kernel: cutlass.Constexpr,
    stage: cutlass.Int32,  # address
    rX_place: cute.Tensor,  # i32 [row_tiles], see `place_x`
    rSums: cute.Tensor,  # f32 [tiles, row_tiles, 4]
    rSquares: cute.Tensor,  # f32 [row_tiles], of this lane's elements
    with_squares: cutlass.Boolean,
) -> None:
    """Add a stage's products."""
    lane = cute.arch.lane_idx()
    for begin in range_constexpr(0, CHUNK_BYTES, _HALF):
        x = []
        for tile in range_constexpr(kernel.row_tiles):
            x.append(load_shared_words(stage + (rX_place[tile] ^ begin), offset=kernel.x_begin))
        if const_expr(kernel.has_norm):
            if with_squares:
                for tile in range_constexpr(kernel.row_tiles):
                    for word in range_constexpr(4):
                        rSquares[tile] = _add_squares(rSquares[tile], x[tile][word])
            factors = load_shared_words(stage + lane % 4 * 16, offset=kernel.norm_begin + begin)
            for tile in range_constexpr(kernel.row_tiles):
                x[tile] = [_times(x[tile][word], factors[word], kernel.weight_bias) for word in range(4)]
        weight = stage + (_place(lane // 4) ^ begin)
        for tile in range_constexpr(kernel.tiles):
            upper = load_shared_words(weight, offset=tile * 16 * CHUNK_BYTES)
            lower = load_shared_words(weight, offset=(tile * 16 + 8) * CHUNK_BYTES)
            for k in range_constexpr(0, 4, 2):  # of all columns, before a sum is added to again
                a = upper[k], lower[k], upper[k + 1], lower[k + 1]
                for column in range_constexpr(kernel.row_tiles):
                    sums = [rSums[tile, column, i] for i in range(4)]
                    sums = mma_16x8x16(sums, a, x[column][k : k + 2], kernel.dtype)
                    for i in range_constexpr(4):
                        rSums[tile, column, i] = sums[i]


def _low(word: cutlass.Int32) -> cutlass.Float32:
    """The first of two bfloat16."""
    return (word << 16).bitcast(cutlass.Float32)


def _high(word: cutlass.Int32) -> cutlass.Float32:
    return (word & -65536).bitcast(cutlass.Float32)


def _add_squares(total: cutlass.Float32, word: cutlass.Int32) -> cutlass.Float32:
    for value in (_low(word), _high(word)):
        total = cute.math.fma(value, value, total)
    return total


def _times(word: cutlass.Int32, factors: cutlass.Int32, bias: float) -> cutlass.Uint32:
    """x * (factor + bias), rounded to bfloat16, of two."""
    low, high = (of(word) * (of(factors) + bias) for of in (_low, _high))
    return rounded_pair(low, high, "bfloat16")


@cute.jit
def put_squares(kernel: cutlass.Constexpr, rSquares: cute.Tensor, sSquares: cute.Tensor) -> None:
    """A warp's sums of squares of all rows: to be read when threads have met."""
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    for tile in range_constexpr(kernel.row_tiles):
        total = rSquares[tile]
        for distance in range_constexpr(1, 3):
            total += cute.arch.shuffle_sync_bfly(total, offset=distance)
        if lane % 4 == 0:
            sSquares[warp, tile * 8 + lane // 4] = total


def is_loaded_early(kernel: Any) -> bool:
    """Do registers hold what the results need beside the product while that is computed?"""
    return kernel.beside_words * results(kernel) <= _MOST_EARLY


def new_beside(kernel: Any) -> cute.Tensor:  # f32 [beside_words, results]
    return cute.make_rmem_tensor((max(1, kernel.beside_words), results(kernel)), cutlass.Float32)


@cute.jit
def load_beside(
    kernel: cutlass.Constexpr,
    operands: Any,
    rUnit: cute.Tensor,
    rBeside: cute.Tensor,
    first: cutlass.Constexpr,
    end: cutlass.Constexpr,
) -> None:
    """For results `first` .. `end` - 1 of the thread: see `FewRows.load_beside`."""
    if const_expr(kernel.beside_words > 0):
        for index in range_constexpr(first, end):
            m, n, _, _, is_there = _result(kernel, index, rUnit)
            if is_there:
                kernel.load_beside(operands, rUnit, m, n, rBeside[None, index])


def _result(kernel: Any, index: int, rUnit: cute.Tensor) -> tuple[Any, Any, Any, Any, Any]:
    """Of a thread's result: row of x in the unit, row of a part of the weight; where in the exchanged sums: row of x,
    row of the unit's part; and whether it is one."""
    thread, _, _ = cute.arch.thread_idx()
    each, columns = results_of_pass(kernel), 8 * pass_tiles(kernel)
    if kernel.keeps_rows:
        of_column = kernel.threads // columns
        column, row = thread // of_column, thread % of_column + index % each * of_column
    else:
        number = thread + index % each * kernel.threads
        column, row = number // kernel.part_rows, number % kernel.part_rows
    m, n = index // each * columns + column, rUnit[0] + row
    return m, n, column, row, (column < columns) & (row < kernel.part_rows) & (m < rUnit[1]) & (n < kernel.out_features)


@cute.jit
def finish(
    kernel: cutlass.Constexpr,
    operands: Any,
    rUnit: cute.Tensor,
    rSums: cute.Tensor,  # f32 [tiles, row_tiles, 4]
    sSums: cute.Tensor,
    sSquares: Any,
    rBeside: cute.Tensor,
    rKept: cute.Tensor,
    parity: cutlass.Int32,  # of passes so far
) -> None:
    """Add the warps' sums, in order, and hand each result to the kernel."""
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    tiles, each = pass_tiles(kernel), results_of_pass(kernel)
    for number in range_constexpr(passes(kernel)):
        buffer = (parity + number) % 2
        if const_expr(not is_loaded_early(kernel)):
            load_beside(kernel, operands, rUnit, rBeside, number * each, (number + 1) * each)
        for tile in range_constexpr(kernel.tiles):
            for column in range_constexpr(tiles):
                for i in range_constexpr(4):
                    place = column * 8 + lane % 4 * 2 + i % 2, tile * 16 + lane // 4 + i // 2 * 8
                    sSums[buffer, warp, *place] = rSums[tile, number * tiles + column, i]
        cute.arch.sync_threads()
        for index in range_constexpr(number * each, (number + 1) * each):
            m, n, column, row, is_there = _result(kernel, index, rUnit)
            if is_there:
                rSum = cute.make_rmem_tensor((kernel.parts,), cutlass.Float32)
                for part in range_constexpr(kernel.parts):
                    of_unit = row if const_expr(kernel.parts == 1) else row // 8 * 16 + part * 8 + row % 8
                    rSum[part] = sSums[buffer, 0, column, of_unit]
                    for one in range_constexpr(1, WARPS):
                        rSum[part] += sSums[buffer, one, column, of_unit]
                    if const_expr(kernel.has_norm):
                        rSum[part] *= _norm_factor(kernel, sSquares, m)
                kernel.write(operands, rUnit, m, n, rSum, rBeside[None, index], rKept[None, number])


@cute.jit
def _norm_factor(kernel: cutlass.Constexpr, sSquares: cute.Tensor, m: cutlass.Int32) -> cutlass.Float32:
    """1 / sqrt(mean(x^2) + eps) of a row."""
    total = sSquares[0, m]
    for warp in range_constexpr(1, WARPS):
        total += sSquares[warp, m]
    return 1.0 / cute.math.sqrt(total / kernel.in_features + kernel.eps)

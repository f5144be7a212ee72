"""A row in parts: each block of threads reads one, into shared memory, while others still wait for theirs.

How many parts a row has, and which thread looks at which element, depends on the row's length alone: so what is added
up is added up in one order, whatever else a launch computes. Blocks are small, so that several are on a multiprocessor
and some load while others compute.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.compile.launch_policy import WARP
from optimized.kernels.forbidden import Forbidden, forbid, strike_out
from optimized.kernels.ordered import largest_of_warp
from optimized.kernels.row_slices import UNIT, RowSlices
from optimized.kernels.sample_row import strike_out_padding

THREADS = 256  # of a block
WARPS = THREADS // WARP
MOST_ELEMENTS = 40 * THREADS  # of a part
_USUAL = 30  # the exponent of numbers that are divided quickly; no temperature is below 2^-20

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32


def parts_of(row_length: int) -> int:
    return -(-row_length // MOST_ELEMENTS)


def slice_of(row_length: int) -> int:
    """Elements of a part; the last may have fewer."""
    return -(-row_length // (parts_of(row_length) * UNIT)) * UNIT


class RowParts(RowSlices):
    """A kernel over rows in parts. Elements are float32."""

    threads = THREADS

    @property
    def parts(self) -> int:
        return parts_of(self.row_length)

    @property
    def slice(self) -> int:  # type: ignore[override]
        return slice_of(self.row_length)


def shared(dtype: Any, *shape: int) -> cute.Tensor:
    """A tensor in shared memory."""
    layout = cute.make_ordered_layout(shape, order=tuple(reversed(range(len(shape)))))
    return SmemAllocator().allocate_tensor(dtype, layout, byte_alignment=32)


@cute.jit
def read_part(
    mRow: cute.Tensor,  # f32 [V]
    forbidden: Forbidden,
    request: cutlass.Int32,
    part: cutlass.Int32,
    num_token_ids: cutlass.Int32,
    divisor: cutlass.Float32,
    sForbidden: cute.Tensor,  # u32 [slice / BITS]
    sRow: cute.Tensor,  # f32 [slice]
    divides: cutlass.Constexpr,
    row: cutlass.Constexpr,  # the kernel
) -> tuple[cutlass.Float32, cutlass.Float32]:
    """Fill sRow with what may be sampled; what may not, and what lies beyond the row, is -infinity. If `divides`, all
    is divided by the temperature, and rounded, as in the reference.

    Returns the thread's largest logit as it was given, NaN if there is one, and the largest that it wrote, without NaN.
    Every thread of the block must call it, and wait for the others before it reads.
    """
    thread, _, _ = cute.arch.thread_idx()
    first = part * row.slice
    forbids = forbidden.mMaskRow[request] >= 0 or forbidden.mBanned.shape[1] > 0
    if forbids:
        forbid(forbidden, request, first, sForbidden, THREADS)
    begin, end = first // row.vector, cutlass.min(row.slice, row.row_length - first) // row.vector  # of accesses
    gRow = cute.zipped_divide(mRow, (row.vector,))
    gSlice = cute.zipped_divide(sRow, (row.vector,))
    rRow = cute.make_rmem_tensor((row.vector, row.batch), f32)
    raw, top, reciprocal = -f32.inf, -f32.inf, f32(1.0) / divisor
    for b in cutlass.range(-(-row.vectors // row.batch), unroll=1):
        number = thread + b * (row.batch * THREADS)
        for i in range_constexpr(row.batch):
            here = number + i * THREADS
            cute.autovec_copy(gRow[None, begin + (here if here < end else end - 1)], rRow[None, i])
        for i in range_constexpr(row.batch):
            here = number + i * THREADS
            place = here * row.vector
            if here >= end:
                rRow[None, i].fill(-f32.inf)
            if place < row.slice:
                for e in range_constexpr(row.vector):
                    raw = cute.arch.fmax(raw, rRow[e, i], nan=True)
                strike_out_padding(rRow[None, i], place, num_token_ids - first)
                if forbids:
                    strike_out(rRow[None, i], sForbidden, place)
                if const_expr(divides):  # noqa: SIM102, of compile time
                    if divisor != 1.0:
                        divide(rRow[None, i], divisor, reciprocal)
                for e in range_constexpr(row.vector):
                    top = cute.arch.fmax(top, rRow[e, i])
                cute.autovec_copy(rRow[None, i], gSlice[None, here])
    return raw, top


@cute.jit
def divide(rValues: cute.Tensor, divisor: cutlass.Float32, reciprocal: cutlass.Float32) -> None:
    """Each value by the divisor, rounded to nearest, in half the instructions of a division where numbers are of usual
    size: what a quotient that is nearly right leaves of the value corrects it, twice. It is what a division does, too,
    besides looking at each number and finding the reciprocal anew."""
    least, most = cute.math.absf(rValues[0]), cute.math.absf(rValues[0])
    for e in range_constexpr(1, cute.size(rValues)):
        least = cute.arch.fmin(least, cute.math.absf(rValues[e]))
        most = cute.arch.fmax(most, cute.math.absf(rValues[e]))
    if least >= f32(2.0**-_USUAL) and most <= f32(2.0**_USUAL) and divisor <= f32(2.0**_USUAL):
        for e in range_constexpr(cute.size(rValues)):
            quotient = rValues[e] * reciprocal
            for _ in range_constexpr(2):
                rest = cute.math.fma(-quotient, divisor, rValues[e])
                quotient = cute.math.fma(rest, reciprocal, quotient)
            rValues[e] = quotient
    else:
        for e in range_constexpr(cute.size(rValues)):
            rValues[e] = rValues[e] / divisor


@cute.jit
def largest_of_block(entry: cutlass.Uint64, sEntries: cute.Tensor) -> cutlass.Uint64:
    """In every thread. sEntries: u64 [WARPS]. Every thread of the block must call it."""
    entry = largest_of_warp(entry)
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    if lane == 0:
        sEntries[warp] = entry
    cute.arch.sync_threads()
    largest = largest_of_warp(sEntries[lane % WARPS])
    cute.arch.sync_threads()
    return largest


@cute.jit
def largest_of_quad(rQuad: cute.Tensor) -> cutlass.Float32:
    """Without NaN."""
    return cute.arch.fmax(cute.arch.fmax(rQuad[0], rQuad[1]), cute.arch.fmax(rQuad[2], rQuad[3]))


@cute.jit
def one_of(rValues: cute.Tensor, number: cutlass.Int32) -> Any:
    """rValues[number], of four in registers."""
    low = rValues[0] if number == 0 else rValues[1]
    high = rValues[2] if number == 2 else rValues[3]
    return low if number < 2 else high

"""Sampling from all tokens that a row's limits leave, however many: the Gumbel-max draw over a whole row.

Every token's noise is needed, but few of them exactly: an approximation that errs by less than NEAR rules out all but
one or two of a block's, and these alone are computed as the reference does it.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.kernels.ordered import LAST_ENTRY, entry_of, id_of_entry, value_of_entry
from optimized.kernels.philox import LEAST_GUMBEL, MOST_GUMBEL, NEAR, NoiseOf, gumbel, gumbel_near, words_of_token
from optimized.kernels.precise import exp_of_negative
from optimized.kernels.row_cluster import QUAD, THREADS, WARPS

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


@cute.jit
def keeps_min_p(distance: cutlass.Float32, min_p: cutlass.Float32, cut: cutlass.Float32) -> cutlass.Boolean:
    """Is exp(-distance) >= min_p? cut: -log(min_p), which decides unless it is close."""
    keeps = distance <= cut
    if cute.math.absf(distance - cut) <= f32(1e-5) * (f32(1.0) + cut):
        keeps = exp_of_negative(-distance) >= min_p
    return keeps


@cute.jit
def limit_quad(
    rQuad: cute.Tensor,  # f32 [QUAD] in registers
    token: cutlass.Int32,  # of the first
    top: cutlass.Float32,  # the row's largest
    last: cutlass.Uint64,  # entry of the last that top-k and top-p keep; LAST_ENTRY keeps all
    min_p: cutlass.Float32,
    cut: cutlass.Float32,  # -log(min_p)
) -> None:
    """What the limits do not keep becomes -infinity."""
    if last > u64(LAST_ENTRY):
        last_value, last_id = value_of_entry(last), id_of_entry(last)
        for e in range_constexpr(QUAD):
            is_kept = rQuad[e] > last_value or (rQuad[e] == last_value and token + e <= last_id)
            rQuad[e] = rQuad[e] if is_kept else -f32.inf
    if min_p > 0.0:
        for e in range_constexpr(QUAD):
            rQuad[e] = rQuad[e] if keeps_min_p(top - rQuad[e], min_p, cut) else -f32.inf


@cute.jit
def largest_of_quad(rQuad: cute.Tensor) -> cutlass.Float32:
    """Without NaN."""
    return cute.arch.fmax(cute.arch.fmax(rQuad[0], rQuad[1]), cute.arch.fmax(rQuad[2], rQuad[3]))


@cute.jit
def perturb_nearly(
    sRow: cute.Tensor,  # f32 [slice]: what may be sampled, divided; overwritten
    first: cutlass.Int32,  # id of the block's first element, a multiple of QUAD
    top: cutlass.Float32,
    last: cutlass.Uint64,
    min_p: cutlass.Float32,
    noise: NoiseOf,
    row: cutlass.Constexpr,
) -> cutlass.Float32:
    """Add noise that errs by less than NEAR to what the limits keep. What cannot win becomes -infinity. Returns the
    thread's largest."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad = cute.make_rmem_tensor((QUAD,), f32)
    cut = -cute.math.log(min_p)
    best = -f32.inf
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            token = first + number * QUAD
            limit_quad(rQuad, token, top, last, min_p, cut)
            # What cannot win, whatever its noise is, needs none. Rounding is far below the tenth that is added.
            if largest_of_quad(rQuad) + f32(MOST_GUMBEL - LEAST_GUMBEL + 0.1) >= top:
                words = words_of_token(noise, token)
                for e in range_constexpr(QUAD):
                    rQuad[e] = rQuad[e] + gumbel_near(words[e])
                    best = cute.arch.fmax(best, rQuad[e])
            else:
                rQuad.fill(-f32.inf)
            cute.autovec_copy(rQuad, gRow[None, number])
    return best


@cute.jit
def largest_of_block(value: cutlass.Float32, sMaxima: cute.Tensor) -> cutlass.Float32:
    """In every thread. sMaxima: f32 [WARPS]. Every thread of the block must call it."""
    for i in range_constexpr(5):
        value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, 1 << i))
    warp = cute.arch.warp_idx()
    if cute.arch.lane_idx() == 0:
        sMaxima[warp] = value
    cute.arch.sync_threads()
    for i in range_constexpr(WARPS):
        value = cute.arch.fmax(value, sMaxima[i])
    return value


@cute.jit
def draw_of_all(
    mRow: cute.Tensor,  # f32 [V]: the logits as they were given
    sRow: cute.Tensor,  # f32 [slice]: what may be sampled, divided; overwritten
    sMaxima: cute.Tensor,  # f32 [WARPS]
    first: cutlass.Int32,  # id of the block's first element, a multiple of QUAD
    top: cutlass.Float32,  # the row's largest, finite
    last: cutlass.Uint64,  # entry of the last that top-k and top-p keep; LAST_ENTRY keeps all
    min_p: cutlass.Float32,
    divisor: cutlass.Float32,
    noise: NoiseOf,
    row: cutlass.Constexpr,
) -> cutlass.Uint64:
    """The thread's largest entry (perturbed logit, id) among those that may be the block's largest; 0 if it has none.
    Every thread of the block must call it."""
    thread, _, _ = cute.arch.thread_idx()
    best = perturb_nearly(sRow, first, top, last, min_p, noise, row)
    largest = largest_of_block(best, sMaxima)
    least = largest - (f32(2 * NEAR) + cute.math.absf(largest) * f32(2.0**-20))
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad = cute.make_rmem_tensor((QUAD,), f32)
    entry = u64(0)
    if best >= least and best > -f32.inf:
        for i in cutlass.range(row.quads, unroll=1):
            number = thread + i * THREADS
            if number < row.slice // QUAD:
                cute.autovec_copy(gRow[None, number], rQuad)
                for e in range_constexpr(QUAD):
                    if rQuad[e] >= least:
                        token = first + number * QUAD + e
                        words = words_of_token(noise, token)
                        value = mRow[token] / divisor
                        other = entry_of(value + gumbel(words[e]), token)
                        entry = other if other > entry else entry
    return entry

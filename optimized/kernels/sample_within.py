"""The Gumbel-max draw among some of a row: those before which some entry comes that is known not to be kept.

Every token's noise is needed, but few of them exactly: an approximation that errs by less than NEAR rules out all but a
few of a warp's, and these alone are computed as the reference does it.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.kernels.ordered import entry_of, key_of, value_of
from optimized.kernels.philox import LEAST_GUMBEL, MOST_GUMBEL, NEAR, NoiseOf, gumbel, gumbel_near, words_of_token
from optimized.kernels.precise import exp_of_negative
from optimized.kernels.row_slices import QUAD
from optimized.kernels.sample_before import Pivot, precedes
from optimized.kernels.sample_part import THREADS, largest_of_quad, one_of

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
def draw_within(
    sRow: cute.Tensor,  # f32 [slice]: quotients that may be sampled
    first: cutlass.Int32,  # id of the part's first element
    top: cutlass.Float32,  # the row's largest, finite
    last: Pivot,  # only what precedes it is drawn from
    min_p: cutlass.Float32,
    noise: NoiseOf,
    row: cutlass.Constexpr,  # the kernel
) -> cutlass.Uint64:
    """The thread's largest entry (perturbed quotient, id) among those that may be the part's largest; 0 if it has none.
    Every lane of the warp must call it."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad, rNear = (cute.make_rmem_tensor((QUAD,), f32) for _ in range(2))
    rWords = cute.make_rmem_tensor((QUAD,), u32)
    rWords.fill(0)
    cut = -cute.math.log(min_p)
    slack = cute.math.absf(top) * f32(2.0**-20)
    reach = f32(MOST_GUMBEL - LEAST_GUMBEL + 0.1) + slack
    best, best_near = u64(0), -f32.inf  # the thread's, the warp's
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        rNear.fill(-f32.inf)
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            for e in range_constexpr(QUAD):
                is_kept = precedes(rQuad[e], first + number * QUAD + e, last)
                if min_p > 0.0:
                    is_kept = is_kept and keeps_min_p(top - rQuad[e], min_p, cut)
                rQuad[e] = rQuad[e] if is_kept else -f32.inf
            if top - largest_of_quad(rQuad) <= reach:  # else it cannot win, whatever its noise is
                words = words_of_token(noise, first + number * QUAD)
                for e in range_constexpr(QUAD):
                    rWords[e] = words[e]
                    rNear[e] = rQuad[e] + gumbel_near(words[e])
        largest = largest_of_quad(rNear)
        best_near = cute.arch.fmax(best_near, value_of(cute.arch.warp_redux_sync(key_of(largest), "max")))
        least = best_near - (f32(2 * NEAR) + slack)
        if largest >= least and largest > -f32.inf:
            for e in cutlass.range(QUAD, unroll=1):
                if one_of(rNear, e) >= least:
                    entry = entry_of(one_of(rQuad, e) + gumbel(one_of(rWords, e)), first + number * QUAD + e)
                    best = entry if entry > best else best
    return best

"""The Gumbel-max draw over all of a part: who of a crowd may be the largest, told without a logarithm of each.

    x[i] + g[i] is largest where the arrival -log(u[i]) / exp(x[i]) is earliest

Arrivals before a time t are a Poisson process: t * sum(exp(x)) are expected. So with a time by which AT_FIRST are, few
of thousands of tokens arrive, and these alone are perturbed as the reference does it. Nearly always some do; if none
does, the time is longer. That -log(u) is at least 1 - u, which is exact, tells who does not arrive.

Exponentials err, as do the reference's own quotients and sums, in relation to the largest quotient. The time is longer
by more than that (`_slack`); where it is much, because quotients are huge, few are near the largest, and all that are
are perturbed.
"""

from __future__ import annotations

import math
import operator

import cutlass
from cutlass import cute, range_constexpr

from optimized.kernels.ordered import entry_of, entry_of_words, key_of
from optimized.kernels.philox import LEAST_GUMBEL, MOST_GUMBEL, NoiseOf, gumbel, words_of_token
from optimized.kernels.row_slices import QUAD
from optimized.kernels.sample_heads import MOST_LISTED
from optimized.kernels.sample_part import THREADS, WARPS, largest_of_block, largest_of_quad, one_of

AT_FIRST = 8.0  # arrivals that are expected
_LONGER = 8.0  # by this factor, if none was seen
_MOST_TRIES = 12  # the last of which sees all: the largest has an exponential of 1, and there are at most 2^14
_HUGE = 2.0**17  # quotient

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


@cute.jit
def race(
    mRow: cute.Tensor,  # f32 [V]: the logits as they were given
    sRow: cute.Tensor,  # f32 [slice]: those that may be sampled; overwritten
    first: cutlass.Int32,  # id of the part's first element
    raw_top: cutlass.Float32,  # the part's largest logit that may be sampled, and
    top: cutlass.Float32,  # its quotient, both finite
    divisor: cutlass.Float32,
    min_p: cutlass.Float32,
    noise: NoiseOf,
    sFound: cute.Tensor,  # u64 [MOST_LISTED]
    sCount: cute.Tensor,  # u32 [1]
    sEntries: cute.Tensor,  # u64 [WARPS]
    sSums: cute.Tensor,  # f32 [WARPS]
    row: cutlass.Constexpr,  # the kernel
) -> tuple[cutlass.Int32, cutlass.Uint64]:
    """List (perturbed quotient, id) in sFound. Returns how many there are, and the entry below which some may be left
    out: of tokens that min-p keeps, if it is in relation to the part's largest. Every thread of the block must call it,
    and meet after it."""
    thread, _, _ = cute.arch.thread_idx()
    best, bound = u64(0), u64(0)
    if cute.math.absf(top) > f32(_HUGE):
        if thread == 0:
            sCount[0] = u32(MOST_LISTED + 1)
        best = largest_of_block(_perturb_near_ones(sRow, first, top, divisor, noise, row), sEntries)
    else:
        expected = _exponentials(sRow, raw_top, divisor, min_p * f32(0.99) / _slack(top), sSums, row)
        time, tries = f32(AT_FIRST) / expected, i32(0)
        while best <= bound and tries < _MOST_TRIES:
            # Who has not arrived by then is below this.
            bound = entry_of_words(key_of(top - cute.math.log(time)), u32(0))
            cute.arch.sync_threads()
            if thread == 0:
                sCount[0] = u32(0)
            cute.arch.sync_threads()
            own = _arrivals(mRow, sRow, first, divisor, time * _slack(top), noise, sFound, sCount, row)
            best = largest_of_block(own, sEntries)
            time, tries = time * f32(_LONGER), tries + 1
    cute.arch.sync_threads()
    listed = i32(sCount[0])
    if listed > MOST_LISTED:  # the first of them is enough
        listed, bound = i32(1), best
        cute.arch.sync_threads()
        if thread == 0:
            sFound[0] = best
    return listed, bound


@cute.jit
def _slack(top: cutlass.Float32) -> cutlass.Float32:
    """A quotient errs by 2^-24 of it, and so does what is added to it; exponentials err by 2^-15 (of a distance up to
    88), the noise by 2^-17."""
    return cute.math.exp(cute.math.absf(top) * f32(2.0**-21) + f32(2.0**-13))


@cute.jit
def _exponentials(
    sRow: cute.Tensor,
    top: cutlass.Float32,
    divisor: cutlass.Float32,
    least: cutlass.Float32,
    sSums: cute.Tensor,
    row: cutlass.Constexpr,
) -> cutlass.Float32:
    """Of quotients, over the largest one; 0 for those below `least`. Returns their sum, in every thread."""
    thread, _, _ = cute.arch.thread_idx()
    scale = f32(math.log2(math.e)) / divisor
    shift = -top * scale
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad = cute.make_rmem_tensor((QUAD,), f32)
    total = f32(0.0)
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            for e in range_constexpr(QUAD):
                rQuad[e] = cute.math.exp2(cute.math.fma(rQuad[e], scale, shift), fastmath=True)
            if least > 0.0:
                for e in range_constexpr(QUAD):
                    rQuad[e] = rQuad[e] if rQuad[e] >= least else f32(0.0)
            for e in range_constexpr(QUAD):
                total += rQuad[e]
            cute.autovec_copy(rQuad, gRow[None, number])
    total = cute.arch.warp_reduction(total, operator.add)
    warp = cute.arch.warp_idx()
    if cute.arch.lane_idx() == 0:
        sSums[warp] = total
    cute.arch.sync_threads()
    total = f32(0.0)
    for i in range_constexpr(WARPS):
        total += sSums[i]
    return total


@cute.jit
def _arrivals(
    mRow: cute.Tensor,
    sRow: cute.Tensor,  # f32 [slice]: exponentials
    first: cutlass.Int32,
    divisor: cutlass.Float32,
    time: cutlass.Float32,
    noise: NoiseOf,
    sFound: cute.Tensor,
    sCount: cute.Tensor,
    row: cutlass.Constexpr,
) -> cutlass.Uint64:
    """List who arrives by that time, and maybe others. Returns the thread's largest entry."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(sRow, (QUAD,))
    rQuad = cute.make_rmem_tensor((QUAD,), f32)
    rWords = cute.make_rmem_tensor((QUAD,), u32)
    best = u64(0)
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            if largest_of_quad(rQuad) * time >= f32(2.0**-25):  # 1 - u is at least twice that
                words = words_of_token(noise, first + number * QUAD)
                some_arrived = cutlass.Boolean(False)
                for e in range_constexpr(QUAD):
                    rWords[e] = words[e]
                    some_arrived = some_arrived or _has_arrived(rQuad[e], time, words[e])
                if some_arrived:
                    for e in cutlass.range(QUAD, unroll=1):
                        exponential = one_of(rQuad, e)
                        if exponential > 0.0 and _has_arrived(exponential, time, one_of(rWords, e)):
                            token = first + number * QUAD + e
                            entry = entry_of(mRow[token] / divisor + gumbel(one_of(rWords, e)), token)
                            best = entry if entry > best else best
                            place = cute.arch.atomic_add(sCount.iterator, u32(1), sem="relaxed", scope="cta")
                            if place < u32(MOST_LISTED):
                                sFound[place] = entry
    return best


@cute.jit
def _has_arrived(exponential: cutlass.Float32, time: cutlass.Float32, word: cutlass.Uint32) -> cutlass.Boolean:
    """Surely so, if 1 - u <= exponential * time; in one of 2^23 cases even if that is 0."""
    high = ((word >> u32(9)) | u32(0x3F800000)).bitcast(f32)  # 1 + u - 2^-24: exact, so that the sum errs by 2^-24
    return cute.math.fma(exponential, time, high) >= f32(2.0 - 2.0**-23)


@cute.jit
def _perturb_near_ones(
    sRow: cute.Tensor,  # f32 [slice]
    first: cutlass.Int32,
    top: cutlass.Float32,
    divisor: cutlass.Float32,
    noise: NoiseOf,
    row: cutlass.Constexpr,
) -> cutlass.Uint64:
    """The thread's largest entry of those so near to the largest that noise can make them win, whatever the size of
    quotients; 0 if it has none."""
    thread, _, _ = cute.arch.thread_idx()
    reach = f32(MOST_GUMBEL - LEAST_GUMBEL + 0.1) + cute.math.absf(top) * f32(2.0**-22)
    best = u64(0)
    for i in cutlass.range(row.quads * QUAD, unroll=1):
        place = thread + i * THREADS
        if place < row.slice:
            value = sRow[place] / divisor
            if top - value <= reach:
                token = first + place
                words = words_of_token(noise, token)
                rWords = cute.make_rmem_tensor((QUAD,), u32)
                for e in range_constexpr(QUAD):
                    rWords[e] = words[e]
                entry = entry_of(value + gumbel(one_of(rWords, token % QUAD)), token)
                best = entry if entry > best else best
    return best

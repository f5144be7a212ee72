"""The first of a row's falling order, of a row in a cluster's shared memory: exactly the reference's, ties and all.

The quick way, in which each element is looked at once more:
1. Each thread's largest element is counted in a bin, by its distance to the row's largest. As many elements as are
   asked for are at least as large as the thread's maxima that come first; so whoever comes first is at most as far
   away as the end of the bin with which that many maxima are counted.
2. All elements up to there are gathered, by the row's first block, and put in order.
Where they are too many (thousands of ties), or the row is an odd one (too few finite elements, NaN), the largest is
taken out once for each that is asked for.

Bins are an eighth of an octave of the distance each: few more elements are gathered than are asked for, however wide
the row is spread.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.ordered import entry_of, entry_of_words, high_word, largest_of_warp, low_word
from optimized.kernels.row_cluster import THREADS, WARPS, heard_largest, meet, tell
from optimized.kernels.row_slices import QUAD
from optimized.ptx.cluster import add_in_block, load_from_block

BINS = 256
MOST_GATHERED = 512
_MANTISSA_BITS = 20  # of a distance that its bin does not depend on
_FIRST_BIN = (127 - 20) << 3  # of distances up to 2^-20; the last is of those from 2^12 on
_LARGEST_BITS = 0x7F7FFFFF  # of the largest number

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


@cute.jit
def count_distance(
    sBins: cute.Tensor,  # u32 [BINS], of this block, 0 at first
    distance: cutlass.Float32,  # of the thread's largest to the row's: infinite if there is none
) -> None:
    if distance < f32.inf:
        number = i32(distance.bitcast(u32) >> u32(_MANTISSA_BITS)) - _FIRST_BIN
        number = cutlass.min(cutlass.max(number, 0), BINS - 1)
        cute.arch.atomic_add(sBins.iterator + number, u32(1), sem="relaxed", scope="cta")


@cute.jit
def tell_bins(
    sBins: cute.Tensor,  # u32 [BINS], of this block
    sTotals: cute.Tensor,  # u32 [BINS], of the cluster, 0 at first, which every block has
    row: cutlass.Constexpr,
) -> None:
    """Add a block's counts to the totals of all blocks. The threads must have met after counting."""
    thread, _, _ = cute.arch.thread_idx()
    if thread < BINS:
        count = sBins[thread]
        if count > u32(0):
            for block in range_constexpr(row.cluster):
                add_in_block(sTotals.iterator + thread, i32(block), count)


@cute.jit
def reach_of(
    sTotals: cute.Tensor,  # u32 [BINS]
    count: cutlass.Int32,  # 1 or more
) -> cutlass.Float32:
    """A distance that at least `count` of the row's elements do not exceed; the largest number if there are fewer."""
    lane = cute.arch.lane_idx()
    rBins = cute.make_rmem_tensor((BINS // WARP,), u32)
    cute.autovec_copy(cute.zipped_divide(sTotals, (BINS // WARP,))[None, lane], rBins)
    total = i32(0)
    for i in range_constexpr(BINS // WARP):
        total += i32(rBins[i])
    before = total
    for i in range_constexpr(5):
        other = cute.arch.shuffle_sync_up(before, 1 << i, mask_and_clamp=0)
        before += other if lane >= 1 << i else i32(0)
    before -= total
    end = i32(BINS)  # of the bins that are needed, if the last one of them is this lane's
    for i in range_constexpr(BINS // WARP):
        after = before + i32(rBins[i])
        if before < count and after >= count:
            end = lane * (BINS // WARP) + i + 1
        before = after
    end = i32(cute.arch.warp_redux_sync(u32(end), "min"))
    reach = (u32(end + _FIRST_BIN) << u32(_MANTISSA_BITS)) - u32(1)
    reach = u32(_LARGEST_BITS) if end == BINS else reach
    return reach.bitcast(f32)


@cute.jit
def gather_within(
    sRow: cute.Tensor,  # f32 [slice]
    first: cutlass.Int32,  # id of the block's first element
    top: cutlass.Float32,  # the row's largest, finite
    reach: cutlass.Float32,
    sFound: cute.Tensor,  # u64 [MOST_GATHERED]
    sCount: cute.Tensor,  # u32 [1], 0 at first
    row: cutlass.Constexpr,
) -> None:
    """Entries of the block's finite elements up to that distance; sCount is their number, which may be larger than what
    there is room for."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(sRow, (QUAD,))
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            rQuad = cute.make_rmem_tensor((QUAD,), f32)
            cute.autovec_copy(gRow[None, number], rQuad)
            largest = cute.arch.fmax(cute.arch.fmax(rQuad[0], rQuad[1]), cute.arch.fmax(rQuad[2], rQuad[3]))
            if top - largest <= reach:
                for e in range_constexpr(QUAD):
                    if top - rQuad[e] <= reach:
                        place = cute.arch.atomic_add(sCount.iterator, u32(1), sem="relaxed", scope="cta")
                        if place < u32(MOST_GATHERED):
                            sFound[place] = entry_of(rQuad[e], first + number * QUAD + e)


@cute.jit
def bring_together(
    sFound: cute.Tensor,  # u64 [MOST_GATHERED], in every block
    sCount: cute.Tensor,  # u32 [1], in every block
    sSlots: cute.Tensor,  # u32 [cluster * WARPS]
    sTogether: cute.Tensor,  # u64 [MOST_GATHERED]
    row: cutlass.Constexpr,
) -> cutlass.Int32:
    """What all blocks found, in the first one's sTogether, in any order. Returns how many there are, in every thread of
    all blocks; if that is more than MOST_GATHERED, nothing is brought. The threads of the first block must meet."""
    thread, _, _ = cute.arch.thread_idx()
    cute.arch.sync_threads()
    tell(sSlots, sCount[0], row)
    meet(row)
    total = i32(0)
    for block in range_constexpr(row.cluster):
        total += i32(sSlots[block * WARPS])
    if total <= MOST_GATHERED:
        if cute.arch.block_idx_in_cluster() == 0:
            for i in cutlass.range(thread, total, THREADS, unroll=1):
                place, of = i, i32(0)
                for block in range_constexpr(row.cluster - 1):
                    count = i32(sSlots[block * WARPS])
                    if of == block and place >= count:
                        place -= count
                        of += 1
                words = cute.recast_tensor(sFound, u32)
                low = load_from_block(words.iterator + 2 * place, of)
                high = load_from_block(words.iterator + 2 * place + 1, of)
                sTogether[i] = entry_of_words(high, low)
        meet(row)
    return total


@cute.jit
def put_in_order(
    sTogether: cute.Tensor,  # u64 [MOST_GATHERED]
    total: cutlass.Int32,
    sOrdered: cute.Tensor,  # u64 [most]
    most: cutlass.Constexpr,
    threads: cutlass.Constexpr,  # of the block
) -> None:
    """The first `most` entries, in falling order. The threads of the block must have met, and must meet."""
    thread, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(thread, total, threads, unroll=1):
        entry = sTogether[i]
        place = i32(0)
        for k in cutlass.range(total, unroll=4):
            place += i32(1) if sTogether[k] > entry else i32(0)
        if place < most:
            sOrdered[place] = entry


@cute.jit
def take_largest(
    sRow: cute.Tensor,  # f32 [slice]
    first: cutlass.Int32,
    count: cutlass.Int32,
    sSlots: cute.Tensor,  # u32 [cluster * WARPS, 4]
    sOrdered: cute.Tensor,  # u64 [count or more]
    row: cutlass.Constexpr,
) -> None:
    """The first `count` entries in falling order, of anything, in every block. The threads of the block must meet."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(sRow, (QUAD,))
    last = u64(2**64 - 1)
    for taken in cutlass.range(count, unroll=1):
        best = u64(0)
        for i in cutlass.range(row.quads, unroll=1):
            number = thread + i * THREADS
            if number < row.slice // QUAD:
                rQuad = cute.make_rmem_tensor((QUAD,), f32)
                cute.autovec_copy(gRow[None, number], rQuad)
                for e in range_constexpr(QUAD):
                    entry = entry_of(rQuad[e], first + number * QUAD + e)
                    if entry < last and entry > best:
                        best = entry
        best = largest_of_warp(best)
        turn = taken % 2 * 2
        sHigh, sLow = sSlots[None, turn], sSlots[None, turn + 1]
        tell(sHigh, high_word(best), row)
        tell(sLow, low_word(best), row)
        meet(row)
        last = heard_largest(sHigh, sLow, row)
        if thread == 0:
            sOrdered[taken] = last

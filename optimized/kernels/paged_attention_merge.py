"""Putting splits and spans together, always in the order of the keys: see `paged_attention_split`.

What a block has whole, it adds up itself; what it has in part, it keeps in a slot of its own in global memory, until
all blocks have come so far. Then the blocks that have a part of a strand share the rest of its sum.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.paged_attention_launch import merge_room
from optimized.kernels.paged_attention_split import (
    SPLIT,
    SPLITS,
    block_of,
    point_at,
    run_begin,
    sum_of_lanes,
)
from optimized.kernels.paged_attention_sum import (
    CHANNELS,
    LENGTH,
    clear,
    copy,
    fold,
    load_piece,
    queries_of,
    store_piece,
    write_piece,
)

# What becomes of a split's result, if it is not kept in a slot (0, 1, ...): it is added to the sum of its span; that
# span's, which it ends, to the sum of its strand; or that one, which the span ends, is the strand's and is written.
TO_SPAN, TO_STRAND, TO_OUT = -1, -2, -3
_AT_ONCE = 16  # results that a thread loads before it adds them up
# A block's share in a strand: pieces, the strand's spans, the request's queries.
BEGIN, END, SPANS, FIRST_QUERY, QUERIES = range(5)
SHARE = 5
_SPAN = 1 << 16  # more than a strand's results


@cute.jit
def destination(
    cursor: cute.Tensor,
    begin: cutlass.Int32,  # the split of this strand with which the run begins, or 0
    end: cutlass.Int32,  # the one before which it ends, at most all
    kept: cutlass.Int32,  # results of this strand that the run has kept
    at: cutlass.Constexpr,
) -> tuple[cutlass.Int32, cutlass.Int32]:
    """(to, alone) of a split's result: a slot, or TO_SPAN, TO_STRAND, TO_OUT; alone: 1 if the run has not the whole of
    its span. `list_kept` is the mirror of this."""
    k = at.splits_per_span
    split, splits = cursor[SPLIT], cursor[SPLITS]
    span_begin = split // k * k
    span_end = cutlass.min(span_begin + k, splits)
    whole_end = whole_spans_end(end, splits, at)
    to, alone = cutlass.Int32(TO_SPAN), cutlass.Int32(0)
    if span_begin < begin or span_end > end:
        alone = cutlass.Int32(1)
        to = k + kept
        if begin == 0:
            to = 1 + split - whole_end
    elif split + 1 == span_end:
        if begin > 0:
            to = k + kept
        elif span_end < whole_end:
            to = cutlass.Int32(TO_STRAND)
        elif end < splits:
            to = cutlass.Int32(0)
        else:
            to = cutlass.Int32(TO_OUT)
    return to, alone


@cute.jit
def settle(
    rX: cute.Tensor,  # f32 [LENGTH]: a piece of a split's result
    sSums: cute.Tensor,  # f32 [LENGTH, 2]: this thread's, of span and strand
    mKept: cute.Tensor,  # f32 [blocks * slots, rows, D + 4]
    mOut: cute.Tensor,
    mQueryStart: cute.Tensor,
    cursor: cute.Tensor,
    begin: cutlass.Int32,
    to: cutlass.Int32,
    alone: cutlass.Int32,
    row: cutlass.Int32,
    piece: cutlass.Int32,
    at: cutlass.Constexpr,
) -> None:
    """Where a result goes that a block has by itself."""
    k = at.splits_per_span
    if alone == 0:
        rSum = cute.make_rmem_tensor(LENGTH, cutlass.Float32)
        clear(rSum)
        if cursor[SPLIT] % k > 0:
            copy(sSums[None, 0], rSum)
        fold(rSum, rX)
        if to == TO_SPAN:
            copy(rSum, sSums[None, 0])
        elif begin == 0:
            clear(rX)
            if cursor[SPLIT] >= k:
                copy(sSums[None, 1], rX)
            fold(rX, rSum)
            if to == TO_STRAND:
                copy(rX, sSums[None, 1])
        else:
            copy(rSum, rX)
    if to >= 0:
        block, _, _ = cute.arch.block_idx()
        store_piece(rX, mKept[block * (mKept.shape[0] // at.blocks) + to, row, None], piece)
    elif to == TO_OUT:
        first, num_queries = queries_of(mQueryStart, cursor)
        write_piece(rX, mOut, first, num_queries, cursor, row, piece, at)


@cute.jit
def whole_spans_end(end: cutlass.Int32, splits: cutlass.Int32, at: cutlass.Constexpr) -> cutlass.Int32:
    """Of the spans that are complete before a split."""
    return end if end == splits else end // at.splits_per_span * at.splits_per_span


@cute.jit
def list_kept(
    sKept: cute.Tensor,  # i32: becomes the slots, numbered through all blocks
    sEnds: cute.Tensor,  # i32: becomes, for each span, where in sKept the next one begins
    sCounts: cute.Tensor,  # i32 [warps]
    start: cutlass.Int32,  # of the strand in the line of all splits
    splits: cutlass.Int32,  # of the strand
    first: cutlass.Int32,  # block that has a part of it
    last: cutlass.Int32,
    total: cutlass.Int32,  # splits of the line
    slots: cutlass.Int32,  # of a block
    at: cutlass.Constexpr,
) -> cutlass.Int32:
    """What blocks have kept of a strand, in order: see `destination`. Returns how many spans there are. Each thread
    lists a block's. Every thread of the block must call it, and wait for the others before it reads."""
    thread, _, _ = cute.arch.thread_idx()
    k = at.splits_per_span
    before = cutlass.Int32(0)  # results that blocks before have kept, and 2^16 for each span that these end
    for first_of_all in cutlass.range(first, last + 1, at.threads, unroll=1):
        block = first_of_all + thread
        alone, spans, behind, slot = (cutlass.Int32(0) for _ in range(4))
        ended = cutlass.Int32(0)  # spans that splits before the first whole span end: 0 or 1
        if block <= last:
            begin = cutlass.max(run_begin(block, total, at.blocks) - start, 0)
            end = cutlass.min(run_begin(block + 1, total, at.blocks) - start, splits)
            whole_end = whole_spans_end(end, splits, at)
            span = (begin + (k - 1)) // k * k  # the first that begins in the run
            alone = cutlass.min(span, end) - begin  # splits before that
            if alone > 0 and (end >= span or end == splits):
                ended = cutlass.Int32(1)
            spans = (cutlass.max(whole_end - span, 0) + (k - 1)) // k
            behind = end - cutlass.max(whole_end, begin + alone)  # splits after the last whole span
            slot = block * slots + k
            if begin == 0:  # all whole spans are one result
                spans = cutlass.min(spans, 1)
                slot = block * slots + 1 - spans
        own = alone + spans + behind + (ended + spans) * _SPAN
        position = before + sum_of_lanes(own) - own
        if cute.arch.lane_idx() == WARP - 1:
            sCounts[cute.arch.warp_idx()] = position + own - before
        cute.arch.sync_threads()
        for i in range_constexpr(at.warps):
            if cute.arch.warp_idx() > i:
                position += sCounts[i]
            before += sCounts[i]
        cute.arch.sync_threads()
        result, number = position % _SPAN, position // _SPAN
        for i in cutlass.range(alone + spans + behind, unroll=1):
            sKept[result + i] = slot + i
        if ended > 0:
            sEnds[number] = result + alone
        for i in cutlass.range(spans, unroll=1):
            sEnds[number + ended + i] = result + alone + i + 1
    return before // _SPAN


@cute.jit
def share_of_strand(
    share: cute.Tensor,  # i32 [SHARE] in registers
    cursor: cute.Tensor,  # becomes the split with which the block's run begins
    words: cute.Pointer,  # i32: shared memory, as many as `at.merge_words`
    mQueryStart: cute.Tensor,
    mSeqLens: cute.Tensor,
    sBegin: cute.Tensor,
    sCounts: cute.Tensor,  # i32 [warps]
    total: cutlass.Int32,  # splits of the line
    slots: cutlass.Int32,  # of a block
    at: cutlass.Constexpr,
) -> None:
    """Where a run begins within a strand, its block has a share in adding up that strand: as many pieces as the other
    blocks whose runs begin within it. Here, before the barrier, is all of it that depends on lengths alone."""
    block, _, _ = cute.arch.block_idx()
    share.fill(0)
    index = run_begin(block, total, at.blocks)
    if index < total:
        point_at(cursor, index, sBegin, mSeqLens, at.strands)
        if cursor[SPLIT] > 0:
            start, splits = index - cursor[SPLIT], cursor[SPLITS]
            first, last = block_of(start, total, at.blocks), block_of(start + splits - 1, total, at.blocks)
            sKept, sEnds, _ = merge_memory(words, at)
            share[SPANS] = list_kept(sKept, sEnds, sCounts, start, splits, first, last, total, slots, at)
            number, shares, pieces = block - first - 1, last - first, at.rows * (at.head_dim // CHANNELS)
            share[BEGIN], share[END] = number * pieces // shares, (number + 1) * pieces // shares
            share[FIRST_QUERY], share[QUERIES] = queries_of(mQueryStart, cursor)


@cute.jit
def finish_strand(
    share: cute.Tensor,  # i32 [SHARE] in registers: what `share_of_strand` found
    cursor: cute.Tensor,
    words: cute.Pointer,
    mKept: cute.Tensor,  # f32 [blocks * slots, rows, D + 4]
    mOut: cute.Tensor,
    at: cutlass.Constexpr,
) -> None:
    """After the barrier: a block's pieces of a strand's result. The sum of a span is a thread's, so that a piece keeps
    many of them loading; that of all spans is one thread's."""
    thread, _, _ = cute.arch.thread_idx()
    begin, end, spans = share[BEGIN], share[END], share[SPANS]
    if begin < end:
        sKept, sEnds, sSpans = merge_memory(words, at)
        at_once = cutlass.min(cutlass.min(end - begin, at.threads), cute.size(sSpans, mode=[1]) // spans)
        part, column, parts = thread // at_once, thread % at_once, at.threads // at_once
        rX, rSpan = (cute.make_rmem_tensor(LENGTH, cutlass.Float32) for _ in range(2))
        for first in cutlass.range(begin, end, at_once, unroll=1):
            row, piece = (first + column) // (at.head_dim // CHANNELS), (first + column) % (at.head_dim // CHANNELS)
            if part < parts and first + column < end:
                for span in cutlass.range(part, spans, parts, unroll=1):
                    first_kept = cutlass.Int32(0)
                    if span > 0:
                        first_kept = sEnds[span - 1]
                    add_up_kept(mKept, sKept, first_kept, sEnds[span], row, piece, rX)
                    copy(rX, sSpans[None, span * at_once + column])
            cute.arch.sync_threads()
            if part == 0 and first + column < end:
                clear(rX)
                for span in cutlass.range(spans, unroll=4):
                    copy(sSpans[None, span * at_once + column], rSpan)
                    fold(rX, rSpan)
                write_piece(rX, mOut, share[FIRST_QUERY], share[QUERIES], cursor, row, piece, at)
            cute.arch.sync_threads()


@cute.jit
def merge_memory(words: cute.Pointer, at: cutlass.Constexpr) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
    """(slots of results, ends of spans, f32 [LENGTH, pieces] sums of spans): see `merge_room`."""
    room = merge_room(at.merge_words)
    sums = cute.recast_ptr(words + (room.kept + room.spans), dtype=cutlass.Float32)
    return (
        cute.make_tensor(words, cute.make_layout(room.kept)),
        cute.make_tensor(words + room.kept, cute.make_layout(room.spans)),
        cute.make_tensor(sums, cute.make_layout((LENGTH, room.pieces), stride=(room.pieces, 1))),
    )


@cute.jit
def add_up_kept(
    mKept: cute.Tensor,
    sKept: cute.Tensor,
    begin: cutlass.Int32,  # in sKept, of a span
    end: cutlass.Int32,
    row: cutlass.Int32,
    piece: cutlass.Int32,
    rSpan: cute.Tensor,  # f32 [LENGTH]: becomes the span's result
) -> None:
    rLoaded = cute.make_rmem_tensor((LENGTH, _AT_ONCE), cutlass.Float32)
    clear(rSpan)
    for first in cutlass.range(begin, end, _AT_ONCE, unroll=1):
        for i in range_constexpr(_AT_ONCE):
            slot = sKept[cutlass.min(first + i, end - 1)]
            load_piece(mKept[slot, row, None], piece, rLoaded[None, i])
        for i in range_constexpr(_AT_ONCE):
            if first + i < end:
                fold(rSpan, rLoaded[None, i])

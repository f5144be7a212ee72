"""Where top-k and top-p end, in a row of any distribution: the last entry of the falling order that is kept.

Both keep the first tokens of the falling order as long as what precedes a token is below a target: a number of tokens,
or a mass of probability. So the last one is found by digits, as a radix sort would: elements fall into 16 bins by the
first four bits of a word (`limit_set`); the bin in which the target is reached is divided by the next four bits, and so
on, until so few tokens are left that one block puts them in order.

Masses are float32 and added up in one order: each thread has a sum for each bin, then lanes and blocks follow in their
order. Counts are sums of ones, which are exact.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.largest import bring_together, put_in_order
from optimized.kernels.limit_set import BINS, MOST_SORTED, SLOTS, Searched, look_at, narrowed, weight_of, whole_row
from optimized.kernels.ordered import entry_of_words, high_word, key_of, low_word, value_of, value_of_entry
from optimized.kernels.row_cluster import THREADS, WARPS, heard_max, meet, tell
from optimized.kernels.sample_few import sum_up_to
from optimized.kernels.sample_memory import SampleMemory
from optimized.ptx.cluster import store_in_block

_EACH = MOST_SORTED // WARP

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


@cute.jit
def last_kept(
    searched: Searched,
    bound: cutlass.Float32,  # top-k, or top-p
    memory: SampleMemory,
    counts: cutlass.Constexpr,  # top-k, and not top-p
    row: cutlass.Constexpr,
) -> cutlass.Uint64:
    """The last entry of the falling order before which there are fewer than `bound` tokens, or less than that share of
    the probability; in every thread of the cluster. A thread's own elements must have been written by it, or the
    block's threads must have met since. Every thread must call it."""
    thread, _, _ = cute.arch.thread_idx()
    target, above = bound, f32(0.0)  # what precedes the set
    subset = whole_row()
    size = i32(row.row_length)  # of the set, at most
    if const_expr(not counts):
        size = i32(row.row_length + MOST_SORTED)  # the first round says how much the target is, however few there are
    rounds = i32(0)
    while size > MOST_SORTED:
        _clear(memory.sCells, memory.sCounts)
        of_memory = memory.sCells, memory.sCounts, memory.sFound
        largest, smallest = look_at(searched, subset, rounds == 0, *of_memory, counts, False, row)
        heard = _exchange(largest, smallest, rounds, memory, row)
        up_to = sum_up_to(heard.mass)
        if const_expr(not counts):
            target = bound * cute.arch.shuffle_sync(up_to, WARP - 1) if rounds == 0 else target
        digit = _reached_in(heard.mass, above + up_to, target)
        before = cute.arch.shuffle_sync_up(up_to, 1, mask_and_clamp=0)
        before = cute.arch.shuffle_sync(before if cute.arch.lane_idx() > 0 else f32(0.0), digit)
        number = i32(heard.mass)
        if const_expr(not counts):
            number = heard.number if rounds > 0 else i32(MOST_SORTED + 1)  # not counted: surely more than a few
        number = cute.arch.shuffle_sync(number, digit)
        subset, size, is_bin = narrowed(subset, size, digit, number, heard.largest, heard.smallest, row)
        above += before if is_bin else f32(0.0)
        rounds += 1

    cute.arch.sync_threads()
    if thread == 0:
        memory.sCounts[0] = u32(0)
    cute.arch.sync_threads()
    of_memory = memory.sCells, memory.sCounts, memory.sFound
    look_at(searched, subset, cutlass.Boolean(False), *of_memory, counts, True, row)
    return _last_of_found(searched.top, target, above, rounds, memory, counts, row)


@cute.jit
def _clear(sCells: cute.Tensor, sCounts: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    for digit in range_constexpr(BINS):
        sCells[thread, digit] = f32(0.0)
    if thread < BINS:
        sCounts[thread] = u32(0)
    cute.arch.sync_threads()


class Heard(NamedTuple):
    """Of a set, in a round."""

    largest: cutlass.Float32
    smallest: cutlass.Float32
    mass: cutlass.Float32  # of bin `lane`; 0 in the lanes that have none
    number: cutlass.Int32  # of its elements, where they are counted


@cute.jit
def _exchange(
    largest: cutlass.Float32,  # the thread's
    smallest: cutlass.Float32,
    rounds: cutlass.Int32,
    memory: SampleMemory,
    row: cutlass.Constexpr,
) -> Heard:
    """Add up the cells and the counts of all blocks. Rounds take turns with the slots: what is told in one may still be
    read while the next is told."""
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    turn = (rounds + 1) % 2 * (SLOTS // 2)
    sMass, sSize = memory.sSlots[None, turn], memory.sSlots[None, turn + 1]
    sLargest, sSmallest = memory.sSlots[None, turn + 2], memory.sSlots[None, turn + 3]
    tell(sLargest, cute.arch.warp_redux_sync(key_of(largest), "max"), row)
    tell(sSmallest, cute.arch.warp_redux_sync(~key_of(smallest), "max"), row)
    cute.arch.sync_threads()
    mass = f32(0.0)
    for i in range_constexpr(THREADS // WARP):
        mass += memory.sCells[i * WARP + lane, warp]
    mass = cute.arch.warp_reduction(mass, operator.add)
    tell(sMass, mass.bitcast(u32), row)
    tell(sSize, memory.sCounts[warp], row)
    meet(row)
    mass, number = f32(0.0), i32(0)
    for block in range_constexpr(row.cluster):
        if lane < BINS:
            mass += sMass[block * WARPS + lane].bitcast(f32)
            number += i32(sSize[block * WARPS + lane])
    return Heard(value_of(heard_max(sLargest, row)), value_of(~heard_max(sSmallest, row)), mass, number)


@cute.jit
def _reached_in(
    mass: cutlass.Float32,  # of bin `lane`
    up_to: cutlass.Float32,  # with all that precedes it
    target: cutlass.Float32,
) -> cutlass.Int32:
    """The bin in which the target is reached, in every lane."""
    lane = cute.arch.lane_idx()
    digit = i32(cute.arch.warp_redux_sync(u32(lane if up_to >= target and lane < BINS else i32(BINS)), "min"))
    if digit == BINS:  # only rounding keeps the target from being reached: in the last that there is
        digit = i32(cute.arch.warp_redux_sync(u32(lane if mass > 0.0 else i32(0)), "max"))
    return digit


@cute.jit
def _last_of_found(
    top: cutlass.Float32,
    target: cutlass.Float32,
    above: cutlass.Float32,
    rounds: cutlass.Int32,
    memory: SampleMemory,
    counts: cutlass.Constexpr,
    row: cutlass.Constexpr,
) -> cutlass.Uint64:
    """The last that is kept, once all of the set have been found: the first block says it to all."""
    lane = cute.arch.lane_idx()
    # The slots of the last round may still be read: what follows takes those of the round before that.
    turn = (rounds + 1) % 2 * (SLOTS // 2)
    total = bring_together(memory.sFound, memory.sCounts, memory.sSlots[None, turn], memory.sTogether, row)
    if cute.arch.block_idx_in_cluster() == 0:
        put_in_order(memory.sTogether, total, memory.sOrdered, MOST_SORTED)
        cute.arch.sync_threads()
        if cute.arch.warp_idx() == 0:
            entry = _last_of_ordered(memory.sOrdered, total, top, target, above, counts)
            if lane < row.cluster:
                store_in_block(memory.sSlots[None, turn + 1].iterator, lane, high_word(entry))
                store_in_block(memory.sSlots[None, turn + 2].iterator, lane, low_word(entry))
    meet(row)
    return entry_of_words(memory.sSlots[0, turn + 1], memory.sSlots[0, turn + 2])


@cute.jit
def _last_of_ordered(
    sOrdered: cute.Tensor,  # u64 [MOST_SORTED]
    total: cutlass.Int32,  # 1 or more
    top: cutlass.Float32,
    target: cutlass.Float32,
    above: cutlass.Float32,
    counts: cutlass.Constexpr,
) -> cutlass.Uint64:
    """The last entry before which there is less than the target, and the first one in any case. By one warp, whose
    lanes have _EACH entries each, one after another."""
    lane = cute.arch.lane_idx()
    rBefore = cute.make_rmem_tensor((_EACH,), f32)
    mass = f32(0.0)
    for i in range_constexpr(_EACH):
        rBefore[i] = mass
        place = lane * _EACH + i
        if place < total:
            mass += weight_of(top - value_of_entry(sOrdered[place]), counts)
    before = cute.arch.shuffle_sync_up(sum_up_to(mass), 1, mask_and_clamp=0)
    before = above + (before if lane > 0 else f32(0.0))
    number = i32(0)
    for i in range_constexpr(_EACH):
        place = lane * _EACH + i
        if place < total and before + rBefore[i] < target:
            number = place
    return sOrdered[i32(cute.arch.warp_redux_sync(u32(number), "max"))]

"""From the lists of a row's parts, those entries that count: see `sample_heads`.

Sixteen threads of a block look at each list.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
from cutlass import cute

from optimized.kernels.ordered import id_of_entry, value_of_entry
from optimized.kernels.philox import NoiseOf
from optimized.kernels.precise import exp_of_negative
from optimized.kernels.sample_heads import count_of_list, entry_of_list
from optimized.kernels.sample_largest import reach_of
from optimized.kernels.sample_part import THREADS

_OF_PART = 16

u32 = cutlass.Uint32
f32 = cutlass.Float32


class Wish(NamedTuple):
    """What a row asks for."""

    divisor: cutlass.Float32  # its temperature
    top_k: cutlass.Int32
    top_p: cutlass.Float32
    min_p: cutlass.Float32
    noise: NoiseOf


@cute.jit
def gather_largest(
    mParts: cute.Tensor,  # i64 [parts, LENGTH]
    top: cutlass.Float32,  # the row's largest quotient
    count: cutlass.Int32,  # 1 or more
    sDistances: cute.Tensor,  # f32 [THREADS]
    sReach: cute.Tensor,  # f32 [1]
    sFound: cute.Tensor,  # u64 [parts * MOST_LISTED]
    sCount: cute.Tensor,  # u32 [1], 0
    parts: cutlass.Constexpr,
) -> None:
    """Of (quotient, id), the first `count` in falling order, and some more. Every thread of the block must call it."""
    thread, _, _ = cute.arch.thread_idx()
    nearest = f32.inf
    for part in cutlass.range(thread // _OF_PART, parts, THREADS // _OF_PART, unroll=1):
        mPart = mParts[part, None]
        for number in cutlass.range(thread % _OF_PART, count_of_list(mPart), _OF_PART, unroll=1):
            nearest = cute.arch.fmin(nearest, top - value_of_entry(entry_of_list(mPart, number)))
    sDistances[thread] = nearest
    cute.arch.sync_threads()
    reach = reach_of(sDistances, sReach, count)
    for part in cutlass.range(thread // _OF_PART, parts, THREADS // _OF_PART, unroll=1):
        mPart = mParts[part, None]
        for number in cutlass.range(thread % _OF_PART, count_of_list(mPart), _OF_PART, unroll=1):
            entry = entry_of_list(mPart, number)
            if top - value_of_entry(entry) <= reach:
                _add(entry, sFound, sCount)
    cute.arch.sync_threads()


@cute.jit
def gather_drawn(
    mRow: cute.Tensor,  # f32 [V]
    mParts: cute.Tensor,  # i64 [parts, LENGTH]
    top: cutlass.Float32,  # the row's largest quotient
    bound: cutlass.Uint64,  # the least entry that counts
    wish: Wish,
    sFound: cute.Tensor,  # u64 [parts * MOST_LISTED]
    sCount: cute.Tensor,  # u32 [1], 0
    parts: cutlass.Constexpr,
) -> None:
    """Of (perturbed quotient, id), those of tokens that min-p keeps. Every thread of the block must call it."""
    thread, _, _ = cute.arch.thread_idx()
    for part in cutlass.range(thread // _OF_PART, parts, THREADS // _OF_PART, unroll=1):
        mPart = mParts[part, None]
        for number in cutlass.range(thread % _OF_PART, count_of_list(mPart), _OF_PART, unroll=1):
            entry = entry_of_list(mPart, number)
            is_one = entry >= bound
            if is_one and wish.min_p > 0.0:
                value = mRow[id_of_entry(entry)] / wish.divisor
                is_one = exp_of_negative(value - top) >= wish.min_p
            if is_one:
                _add(entry, sFound, sCount)
    cute.arch.sync_threads()


@cute.jit
def _add(entry: cutlass.Uint64, sFound: cute.Tensor, sCount: cute.Tensor) -> None:
    sFound[cute.arch.atomic_add(sCount.iterator, u32(1), sem="relaxed", scope="cta")] = entry

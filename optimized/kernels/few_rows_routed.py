"""`few_rows` over the experts that a router chose, without a dispatch: `routed_gated_linear`, `routed_linear`.

A pair is a (token, k), numbered in ascending order; it is a row of its own. Each block sorts all pairs by expert for
itself, in shared memory, and lists the experts' chunks of them (see `few_rows_grouped`). Where a pair stands in a chunk
is a matter of chance, as atomics have it, and shows nowhere: its result has a place of its own, and the same bits
beside any others. Which chunk it is in is not, where an expert has several: all blocks must agree. One token's pairs
are a matter of one warp: no two of them share a chunk.

Programmatic dependent launch, a contract between launches that follow each other: router, gate and up, down.
`routed_gated_linear` waits for the router, and only then lets the next launch begin. So `routed_linear`, launched next,
may read what the router wrote (expert_ids and their weights) before it waits itself, and has its first weights under
way before gate and up are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from optimized.kernels.few_rows_grouped import GroupedFewRows
from optimized.kernels.few_rows_grouped_list import (
    EXPERT_SHIFT,
    add_up,
    chunks_of,
    fresh,
    put_chunks,
    shared_chunks,
    shared_words,
)
from optimized.kernels.few_rows_launch import WARPS
from optimized.kernels.moe_routing import place_of
from optimized.kernels.rows import DTYPES, itemsize

MOST_PAIRS = 512
_COUNT_BITS = 16  # of a sum of two counts in one word: rows in the lower ones, chunks above


class RoutedOperands(NamedTuple):
    """What units are made of."""

    mX: cute.Tensor  # [T, H], or a row for each pair: [T, K, I]
    mWeight: cute.Tensor  # [E, parts N, H or I]
    mIds: cute.Tensor  # i32 [T, K]
    mOut: cute.Tensor  # [T, K, N]
    sChunks: cute.Tensor  # i32 [chunks, 2], see `shared_chunks`; rows are places in sPairs
    sTotals: cute.Tensor  # i32 [warps]
    sBegin: cute.Tensor  # i32 [E]: pairs of each expert, then where they begin in sPairs
    sPairs: cute.Tensor  # i32 [MOST_PAIRS]: pairs by expert
    mExpertWeights: Any = None  # f32 [T, K]
    mResidual: Any = None  # [T, N]


@dataclass(frozen=True)
class RoutedFewRows(GroupedFewRows):
    """All that does not depend on what x is, and what becomes of the sums."""

    experts_per_token: int
    is_alone: bool  # one token, of up to WARP experts?

    def beside_ring(self, operands: tuple[Any, ...]) -> RoutedOperands:
        """Of mX, mWeight, mIds, mOut, and what more there is of `RoutedOperands`."""
        mX, mWeight, mIds, mOut, *others = operands
        sChunks = shared_chunks(self.num_experts + MOST_PAIRS // self.most_rows)
        sTotals, sBegin, sPairs = (shared_words(count) for count in (WARPS, self.num_experts, MOST_PAIRS))
        return RoutedOperands(mX, mWeight, mIds, mOut, sChunks, sTotals, sBegin, sPairs, *others)

    def fake_pairs(self, dtype: str, num_tokens: Any, length: int, access: int) -> Any:
        """[T, K, length], rows contiguous, wherever they begin; access: bytes of one."""
        strides = (cute.sym_int64(divisibility=max(1, access // itemsize(dtype))) for _ in range(2))
        shape, align = (num_tokens, self.experts_per_token, length), max(access, itemsize(dtype))
        return make_fake_tensor(DTYPES[dtype], shape, (*strides, 1), assumed_align=align)

    def pair_address(self, mX: cute.Tensor, token: cutlass.Int32, k: cutlass.Int32) -> cutlass.Int64:
        """Of a row of x [T, K, I]."""
        behind = cutlass.Int64(token) * cutlass.Int64(mX.stride[0]) + cutlass.Int64(k) * cutlass.Int64(mX.stride[1])
        return mX.iterator.toint() + behind * self.itemsize

    def place_of_row(self, operands: RoutedOperands, row: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32]:
        """Token and k of the pair that is this row."""
        return place_of(operands.sPairs[row], self.experts_per_token)

    def list_chunks(self, operands: RoutedOperands) -> cutlass.Int32:
        """How many are there? Every thread must call it."""
        if self.is_alone:
            return list_token(operands, self.experts_per_token)
        return list_pairs(operands, self.experts_per_token, self.most_rows, self.threads)

    def num_units(self, operands: RoutedOperands) -> cutlass.Int32:
        """Lists the chunks. Every thread must call it."""
        return self.list_chunks(operands) * self.units_of_weight


@cute.jit
def list_token(operands: RoutedOperands, per_token: cutlass.Constexpr) -> cutlass.Int32:
    """What `list_pairs` does, of one token with up to WARP experts: each a chunk, in ascending order of k."""
    if cute.arch.warp_idx() == 0:
        lane = cute.arch.lane_idx()
        expert = cutlass.Int32(-1)
        if lane < per_token:
            expert = fresh(operands.mIds, (0, lane))
        is_here = (expert >= 0) & (expert < cute.size(operands.sBegin))
        those = cute.arch.vote_ballot_sync(is_here)
        if is_here:
            place = cutlass.Int32(cute.arch.popc(those & cute.arch.lanemask_lt()))
            operands.sChunks[place, 0] = place
            operands.sChunks[place, 1] = 1 + (expert << EXPERT_SHIFT)
            operands.sPairs[place] = lane
        if lane == 0:
            operands.sTotals[0] = cutlass.Int32(cute.arch.popc(those))
    cute.arch.sync_threads()
    return operands.sTotals[0]


@cute.jit
def list_pairs(
    operands: RoutedOperands,
    per_token: cutlass.Constexpr,
    most_rows: cutlass.Constexpr,  # of a chunk
    threads: cutlass.Constexpr,
) -> cutlass.Int32:
    """Sort the pairs by expert, those of no expert left out, and list the chunks: how many are there? Every thread must
    call it."""
    sBegin, num_experts = operands.sBegin, cute.size(operands.sBegin)
    each = -(-num_experts // threads)
    thread, _, _ = cute.arch.thread_idx()
    rExpert, rRank = _count_pairs(operands.mIds, sBegin, per_token, threads)
    rCount = cute.make_rmem_tensor((each,), cutlass.Int32)
    rCount.fill(0)
    both = cutlass.Int32(0)
    for i in range_constexpr(each):
        if thread * each + i < num_experts:
            rCount[i] = sBegin[thread * each + i]
        both += rCount[i] + (chunks_of(rCount[i], most_rows) << _COUNT_BITS)
    before, total = add_up(both, operands.sTotals, threads)
    first, place = before & ((1 << _COUNT_BITS) - 1), before >> _COUNT_BITS
    for i in range_constexpr(each):
        expert, end = thread * each + i, first + rCount[i]
        if expert < num_experts:
            sBegin[expert] = first
        place = put_chunks(operands.sChunks, place, expert, first, end, most_rows)
        first = end
    cute.arch.sync_threads()
    for i in range_constexpr(cute.size(rExpert)):
        if rExpert[i] >= 0:
            operands.sPairs[sBegin[rExpert[i]] + rRank[i]] = thread + i * threads
    cute.arch.sync_threads()
    _order_pairs(operands.sPairs, sBegin, total & ((1 << _COUNT_BITS) - 1), rExpert, most_rows, threads)
    return total >> _COUNT_BITS


@cute.jit
def _order_pairs(
    sPairs: cute.Tensor,  # i32 [MOST_PAIRS]
    sBegin: cute.Tensor,  # i32 [E]
    num_pairs: cutlass.Int32,
    rExpert: cute.Tensor,  # of `_count_pairs`
    most_rows: cutlass.Constexpr,
    threads: cutlass.Constexpr,
) -> None:
    """Put the pairs of an expert with several chunks in ascending order: blocks take different chunks, so all must find
    the same pairs in each. Every thread must call it."""
    thread, _, _ = cute.arch.thread_idx()
    rPlace = cute.make_rmem_tensor((cute.size(rExpert),), cutlass.Int32)
    rPlace.fill(-1)
    for i in range_constexpr(cute.size(rExpert)):
        expert = rExpert[i]
        if expert >= 0:
            first, end = sBegin[expert], num_pairs
            if expert + 1 < cute.size(sBegin):
                end = sBegin[expert + 1]
            if end - first > most_rows:
                place = first
                for other in cutlass.range(first, end, unroll=1):
                    place += cutlass.Int32(1) if sPairs[other] < thread + i * threads else cutlass.Int32(0)
                rPlace[i] = place
    cute.arch.sync_threads()
    for i in range_constexpr(cute.size(rExpert)):
        if rPlace[i] >= 0:
            sPairs[rPlace[i]] = thread + i * threads
    cute.arch.sync_threads()


@cute.jit
def _count_pairs(
    mIds: cute.Tensor,  # i32 [T, K]
    sCounts: cute.Tensor,  # i32 [E]: becomes the pairs of each expert
    per_token: cutlass.Constexpr,
    threads: cutlass.Constexpr,
) -> tuple[cute.Tensor, cute.Tensor]:  # i32 [items] each
    """The expert of each of a thread's pairs (-1 if there is no such expert or pair), and how many of that expert were
    counted before it. The i-th pair of a thread is i times `threads` further on."""
    items, num_experts = MOST_PAIRS // threads, cute.size(sCounts)
    thread, _, _ = cute.arch.thread_idx()
    rExpert = cute.make_rmem_tensor((items,), cutlass.Int32)
    rRank = cute.make_rmem_tensor((items,), cutlass.Int32)
    rExpert.fill(-1)
    rRank.fill(0)
    for i in range_constexpr(items):
        pair = thread + i * threads
        if pair < mIds.shape[0] * per_token:
            rExpert[i] = fresh(mIds, place_of(pair, per_token))
    for i in range_constexpr(-(-num_experts // threads)):
        if thread + i * threads < num_experts:
            sCounts[thread + i * threads] = 0
    cute.arch.sync_threads()
    for i in range_constexpr(items):
        if rExpert[i] >= num_experts:
            rExpert[i] = -1
        if rExpert[i] >= 0:
            rRank[i] = cute.arch.atomic_add(sCounts.iterator + rExpert[i], cutlass.Int32(1), sem="relaxed", scope="cta")
    cute.arch.sync_threads()
    return rExpert, rRank

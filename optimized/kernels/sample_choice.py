"""The second kernel of `sample_tokens`: what is left of a row's parts is put together, by a block of threads for each
row. Most tokens are known then.

Where there is top-p, or a top-k above FEW, tokens are drawn from all that min-p leaves, and another look at the row
will tell which of them are kept (`sample_masses`). PICKS of them are proposed, the one with the largest perturbed logit
first: the first of all that are kept is the row's token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import cute

from optimized.compile.kernel import Kernel
from optimized.kernels.any_strides import any_strides
from optimized.kernels.forbidden import BITS, Forbidden, forbidden_arguments
from optimized.kernels.largest import put_in_order
from optimized.kernels.ordered import high_word, id_of_entry, value_of_entry
from optimized.kernels.philox import NoiseOf
from optimized.kernels.rows import rows_of, vector_of
from optimized.kernels.sample_before import END, pivot_of
from optimized.kernels.sample_few import FEW, draw_of_few
from optimized.kernels.sample_gather import Wish, gather_drawn, gather_largest
from optimized.kernels.sample_heads import (
    CHOICE,
    DONE,
    MOST_LISTED,
    PICKS,
    SEARCH,
    STATE,
    TEST,
    TOP,
    Head,
    head_of_row,
    heads_of,
)
from optimized.kernels.sample_part import THREADS, WARPS, RowParts, largest_of_block, read_part, shared
from optimized.kernels.sample_parts import ANY_KEPT, counts_few
from optimized.kernels.sample_row import divisor_of, is_finite_key
from optimized.kernels.sample_within import draw_within
from reference.serving.runner import NOT_SAMPLED, NOTHING_ALLOWED, UNUSABLE_LOGITS

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


class Memory(NamedTuple):
    """Shared memory of a block."""

    sFound: cute.Tensor  # u64 [parts * MOST_LISTED]
    sOrdered: cute.Tensor  # u64 [FEW]
    sEntries: cute.Tensor  # u64 [WARPS]
    sCount: cute.Tensor  # u32 [1]
    sDistances: cute.Tensor  # f32 [THREADS]
    sReach: cute.Tensor  # f32 [1]
    sRow: cute.Tensor  # f32 [slice]
    sForbidden: cute.Tensor  # u32 [slice / BITS]


@dataclass(frozen=True)
class SampleChoice(RowParts, Kernel):
    """One token a row, or a few to choose from."""

    row_length: int
    vector: int

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        logits = rows_of("float32", num_rows, self.row_length, self.vector)
        temperature, top_p, min_p = (vector_of("float32", num_rows) for _ in range(3))
        top_k, position, sample_index, out = (vector_of("int32", num_rows) for _ in range(4))
        settings = temperature, top_k, top_p, min_p, any_strides("uint32", num_rows, 2), position, sample_index
        turned = any_strides("int32", num_rows, cute.sym_int())
        numbers = cutlass.Int32(1), cutlass.Int32(ANY_KEPT)
        beside = turned, *numbers, heads_of(num_rows, self.parts), rows_of("int32", num_rows, CHOICE, 1)
        return logits, *settings, *forbidden_arguments(num_rows), *beside, out

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # f32 [R, V]
        mTemperature: cute.Tensor,  # f32 [R]
        mTopK: cute.Tensor,  # i32 [R]
        mTopP: cute.Tensor,  # f32 [R]
        mMinP: cute.Tensor,  # f32 [R]
        mSeed: cute.Tensor,  # u32 [R, 2]
        mPosition: cute.Tensor,  # i32 [R]
        mSampleIndex: cute.Tensor,  # i32 [R]
        mBanned: cute.Tensor,  # i32 [R, N]
        mMask: cute.Tensor,  # u32 [M, W]
        mMaskRow: cute.Tensor,  # i32 [R]
        mTurned: cute.Tensor,  # i32 [R, 0 or 2] of `adjust_logits`
        num_token_ids: cutlass.Int32,
        limits: cutlass.Int32,
        mHeads: cute.Tensor,  # i64 [R, parts, LENGTH]
        mChoice: cute.Tensor,  # i32 [R, CHOICE]: ids of picks, -1 for none; then see `sample_heads`
        mTokenIds: cute.Tensor,  # i32 [R]
        stream: Any,
    ) -> None:
        settings = mTemperature, mTopK, mTopP, mMinP, mSeed, mPosition, mSampleIndex
        beside = mTurned, num_token_ids, limits, mHeads, mChoice
        self.kernel(mLogits, *settings, mBanned, mMask, mMaskRow, *beside, mTokenIds).launch(
            grid=[mLogits.shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self,
        mLogits: cute.Tensor,
        mTemperature: cute.Tensor,
        mTopK: cute.Tensor,
        mTopP: cute.Tensor,
        mMinP: cute.Tensor,
        mSeed: cute.Tensor,
        mPosition: cute.Tensor,
        mSampleIndex: cute.Tensor,
        mBanned: cute.Tensor,
        mMask: cute.Tensor,
        mMaskRow: cute.Tensor,
        mTurned: cute.Tensor,
        num_token_ids: cutlass.Int32,
        limits: cutlass.Int32,
        mHeads: cute.Tensor,
        mChoice: cute.Tensor,
        mTokenIds: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        request, _, _ = cute.arch.block_idx()
        cute.arch.griddepcontrol_wait()
        if limits == ANY_KEPT:  # others of this operation follow; for whoever follows it, all is there at the end
            cute.arch.griddepcontrol_launch_dependents()
        temperature = mTemperature[request]
        token, state, top = i32(NOT_SAMPLED), i32(DONE), f32(0.0)
        mPicks = mChoice[request, None]
        if temperature >= 0.0:
            head = head_of_row(mHeads[request, None, None], self.parts)
            top = value_of_entry(head.first)
            is_usable, has_token = self.is_usable(head, mTurned, request)
            if not is_usable:
                token = i32(UNUSABLE_LOGITS)
            elif not has_token:
                token = i32(NOTHING_ALLOWED)
            elif temperature == 0.0:
                token = id_of_entry(head.first)
            else:
                seed = mSeed[request, 0], mSeed[request, 1]
                noise = NoiseOf(u32(mPosition[request]), u32(mSampleIndex[request]), *seed)
                wish = Wish(divisor_of(temperature), mTopK[request], mTopP[request], mMinP[request], noise)
                of_row = mLogits[request, None], head, wish, limits, mHeads[request, None, None], mPicks
                token, state = self.choose(*of_row, Forbidden(mBanned, mMask, mMaskRow), request, num_token_ids)
        if thread == 0:
            mTokenIds[request] = token
            mPicks[STATE], mPicks[TOP] = state, top.bitcast(i32)

    @cute.jit
    def is_usable(
        self, head: Head, mTurned: cute.Tensor, request: cutlass.Int32
    ) -> tuple[cutlass.Boolean, cutlass.Boolean]:
        """Was the row's largest logit finite, before logits were adjusted; and is there a token to be sampled?

        It was if every NaN and every +infinity has been made by the adjustment, and it has made any, or a -infinity.
        """
        is_usable, has_token = is_finite_key(head.raw), is_finite_key(high_word(head.first))
        if not is_usable:  # noqa: SIM102, what is not there must not be read
            if mTurned.shape[1] > 0:
                above, below = mTurned[request, 0], mTurned[request, 1]
                is_usable = head.infinite + head.nan == above and above + below > 0
                has_token = has_token and head.nan == 0
        return is_usable, has_token

    @cute.jit
    def choose(
        self,
        mRow: cute.Tensor,  # f32 [V]
        head: Head,
        wish: Wish,
        limits: cutlass.Int32,
        mParts: cute.Tensor,  # i64 [parts, LENGTH]
        mPicks: cute.Tensor,  # i32 [CHOICE]
        forbidden: Forbidden,
        request: cutlass.Int32,
        num_token_ids: cutlass.Int32,
    ) -> tuple[cutlass.Int32, cutlass.Int32]:
        """A row's token, and DONE; or what is to be done. A row from which something can be drawn."""
        thread, _, _ = cute.arch.thread_idx()
        memory = self.memory()
        if thread == 0:
            memory.sCount[0] = u32(0)
        cute.arch.sync_threads()
        top, token, state = value_of_entry(head.first), i32(0), i32(DONE)
        found = memory.sFound, memory.sCount
        if counts_few(wish.top_k, limits):
            gather_largest(mParts, top, wish.top_k, memory.sDistances, memory.sReach, *found, self.parts)
            number = i32(memory.sCount[0])
            put_in_order(memory.sFound, number, memory.sOrdered, FEW, THREADS)
            cute.arch.sync_threads()
            if cute.arch.warp_idx() == 0:
                count = cutlass.min(wish.top_k, number)
                token = draw_of_few(memory.sOrdered, count, wish.top_p, wish.min_p, wish.noise)
        else:
            gather_drawn(mRow, mParts, top, head.bound, wish, *found, self.parts)
            number = i32(memory.sCount[0])
            put_in_order(memory.sFound, number, memory.sOrdered, PICKS, THREADS)
            cute.arch.sync_threads()
            by_count, by_mass = wish.top_k > 0 and wish.top_k < self.row_length, wish.top_p < 1.0
            is_limited = limits == ANY_KEPT and (by_count or by_mass)
            if number > 0:
                token = id_of_entry(memory.sOrdered[0])
            if is_limited and (number == 0 or token != id_of_entry(head.first)):
                state = i32(TEST) if number > 0 and not (by_count and by_mass) else i32(SEARCH)
                if thread < PICKS:
                    pick = i32(-1)
                    if thread < number:
                        pick = id_of_entry(memory.sOrdered[thread])
                    mPicks[thread] = pick
            elif number == 0:  # of all that were listed, min-p keeps none
                token = self.search(mRow, forbidden, request, num_token_ids, top, wish, memory)
        return token, state

    @cute.jit
    def memory(self) -> Memory:
        return Memory(
            shared(u64, self.parts * MOST_LISTED),
            shared(u64, FEW),
            shared(u64, WARPS),
            shared(u32, 1),
            shared(f32, THREADS),
            shared(f32, 1),
            shared(f32, self.slice),
            shared(u32, self.slice // BITS),
        )

    @cute.jit
    def search(
        self,
        mRow: cute.Tensor,
        forbidden: Forbidden,
        request: cutlass.Int32,
        num_token_ids: cutlass.Int32,
        top: cutlass.Float32,
        wish: Wish,
        memory: Memory,
    ) -> cutlass.Int32:
        """The token of a row of which min-p leaves so little that of all that were listed nothing is left."""
        entry = u64(0)
        for part in cutlass.range(self.parts, unroll=1):
            of_part = forbidden, request, part, num_token_ids, wish.divisor, memory.sForbidden, memory.sRow
            read_part(mRow, *of_part, True, self)
            cute.arch.sync_threads()
            of_row = top, pivot_of(u64(END)), wish.min_p, wish.noise
            own = draw_within(memory.sRow, part * self.slice, *of_row, self)
            entry = own if own > entry else entry
            cute.arch.sync_threads()
        return id_of_entry(largest_of_block(entry, memory.sEntries))

"""Greedy sampling on a GPU: each row is read once, and kept nowhere. `sample_tokens` launches it where no row draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.compile.kernel import Kernel
from optimized.kernels.any_strides import any_strides
from optimized.kernels.forbidden import BITS, Forbidden, forbid, forbidden_arguments
from optimized.kernels.ordered import entry_of, high_word, id_of_entry, largest_of_warp, low_word
from optimized.kernels.row_cluster import (
    THREADS,
    WARPS,
    RowCluster,
    arrive,
    heard_largest,
    heard_max,
    meet,
    read_batch,
    tell,
    wait_for_all,
)
from optimized.kernels.rows import rows_of, vector_of
from optimized.kernels.sample_row import is_finite_key, look_again, raw_key, rule_out
from reference.serving.runner import NOT_SAMPLED, NOTHING_ALLOWED, UNUSABLE_LOGITS

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


@dataclass(frozen=True)
class GreedyTokens(RowCluster, Kernel):
    """The largest of each row, the lowest id on a tie."""

    row_length: int
    vector: int
    forbids: bool  # is there a mask or a ban?
    adjusted: bool  # are there logits that `adjust_logits` may have turned into infinities?

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        logits = rows_of("float32", num_rows, self.row_length, self.vector)
        of_rows = vector_of("float32", num_rows), *forbidden_arguments(num_rows)
        turned = any_strides("int32", num_rows, cute.sym_int())
        return logits, *of_rows, turned, cutlass.Int32(1), vector_of("int32", num_rows)

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # f32 [R, V]
        mTemperature: cute.Tensor,  # f32 [R]; below 0 the row does not sample
        mBanned: cute.Tensor,  # i32 [R, N]
        mMask: cute.Tensor,  # u32 [M, W]
        mMaskRow: cute.Tensor,  # i32 [R]
        mTurned: cute.Tensor,  # i32 [R, 0 or 2]
        num_token_ids: cutlass.Int32,
        mTokenIds: cute.Tensor,  # i32 [R]
        stream: Any,
    ) -> None:
        self.kernel(mLogits, mTemperature, mBanned, mMask, mMaskRow, mTurned, num_token_ids, mTokenIds).launch(
            grid=[mLogits.shape[0] * self.cluster, 1, 1],
            block=[THREADS, 1, 1],
            cluster=[self.cluster, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        mLogits: cute.Tensor,
        mTemperature: cute.Tensor,
        mBanned: cute.Tensor,
        mMask: cute.Tensor,
        mMaskRow: cute.Tensor,
        mTurned: cute.Tensor,
        num_token_ids: cutlass.Int32,
        mTokenIds: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        request = block // self.cluster
        token = i32(NOT_SAMPLED)
        if mTemperature[request] >= 0.0:
            forbidden = Forbidden(mBanned, mMask, mMaskRow)
            token = self.token_of(mLogits[request, None], forbidden, mTurned, num_token_ids, request)
        if block % self.cluster == 0 and thread == 0:
            mTokenIds[request] = token

    @cute.jit
    def token_of(
        self,
        mRow: cute.Tensor,  # f32 [V]
        forbidden: Forbidden,
        mTurned: cute.Tensor,
        num_token_ids: cutlass.Int32,
        request: cutlass.Int32,
    ) -> cutlass.Int32:
        """A row's, in every thread of its cluster."""
        memory = SmemAllocator()
        sSlots = memory.allocate_tensor(u32, cute.make_layout((self.cluster * WARPS, 5)))
        first = cute.arch.block_idx_in_cluster() * self.slice
        sForbidden = None
        if const_expr(self.forbids):
            sForbidden = memory.allocate_tensor(u32, cute.make_layout(self.slice // BITS))
            forbid(forbidden, request, first, sForbidden, THREADS)
        arrive(self)
        raw, best = self.read(mRow, sForbidden, first, num_token_ids - first)
        best = largest_of_warp(best)
        wait_for_all(self)
        tell(sSlots[None, 0], cute.arch.warp_redux_sync(raw_key(raw), "max"), self)
        tell(sSlots[None, 1], high_word(best), self)
        tell(sSlots[None, 2], low_word(best), self)
        meet(self)
        best = heard_largest(sSlots[None, 1], sSlots[None, 2], self)
        is_usable = is_finite_key(heard_max(sSlots[None, 0], self))
        has_token = is_finite_key(high_word(best))
        if const_expr(self.adjusted):  # noqa: SIM102, of compile time
            if not is_usable:
                is_usable, has_nan = look_again(mRow, mTurned, request, first, sSlots[None, 3], sSlots[None, 4], self)
                has_token = has_token and not has_nan
        token = id_of_entry(best) if has_token else i32(NOTHING_ALLOWED)
        return token if is_usable else i32(UNUSABLE_LOGITS)

    @cute.jit
    def read(
        self,
        mRow: cute.Tensor,  # f32 [V]
        sForbidden: cute.Tensor | None,  # u32 [slice / BITS]
        first: cutlass.Int32,  # id of the block's first element
        allowed: cutlass.Int32,  # places below it are no padding of the vocabulary
    ) -> tuple[cutlass.Float32, cutlass.Uint64]:
        """The thread's largest logit, NaN if there is one; and the entry of the largest that may be sampled."""
        thread, _, _ = cute.arch.thread_idx()
        end = cutlass.min(self.slice, self.row_length - first)
        raw, best, best_place = -f32.inf, -f32.inf, i32(0)
        for b in cutlass.range(-(-self.vectors // self.batch), unroll=1):
            number = thread + b * (self.batch * THREADS)
            rRow = read_batch(mRow, first // self.vector + number, (first + end) // self.vector, self)
            for i in range_constexpr(self.batch):
                place = (number + i * THREADS) * self.vector
                for e in range_constexpr(self.vector):
                    raw = cute.arch.fmax(raw, rRow[e, i], nan=True)
                if place < self.slice:
                    rule_out(rRow[None, i], sForbidden, place, allowed, self)
                for e in range_constexpr(self.vector):
                    is_larger = rRow[e, i] > best
                    best = rRow[e, i] if is_larger else best
                    best_place = place + e if is_larger else best_place
        return raw, entry_of(best, first + best_place)

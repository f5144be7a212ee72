"""The third kernel of `sample_tokens`: rows of which it is not known yet what their limits keep are read again, part by
part, and of each part is told how much of it comes before each of a row's picks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.kernel import Kernel
from optimized.kernels.forbidden import BITS, Forbidden, forbidden_arguments
from optimized.kernels.ordered import entry_of
from optimized.kernels.rows import rows_of, vector_of
from optimized.kernels.sample_before import SUMS, add_up_before, pivot_of, sums_of_block
from optimized.kernels.sample_heads import CHOICE, PICKS, STATE, TEST, TOP
from optimized.kernels.sample_part import THREADS, WARPS, RowParts, read_part, shared
from optimized.kernels.sample_row import divisor_of

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32


@cute.jit
def entry_of_pick(
    mRow: cute.Tensor,  # f32 [V]
    token: cutlass.Int32,  # -1: none
    divisor: cutlass.Float32,
) -> cutlass.Uint64:
    """(quotient, id); of none, one before which comes nothing."""
    entry = entry_of(mRow[token if token >= 0 else 0] / divisor, token)
    return entry if token >= 0 else u64(2**64 - 1)


@dataclass(frozen=True)
class SampleMasses(RowParts, Kernel):
    """A block of threads for each part of each row."""

    row_length: int
    vector: int

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        logits = rows_of("float32", num_rows, self.row_length, self.vector)
        settings = vector_of("float32", num_rows), vector_of("float32", num_rows)
        choice, sums = rows_of("int32", num_rows, CHOICE, 1), rows_of("float32", num_rows, self.parts * SUMS, 1)
        return logits, *settings, *forbidden_arguments(num_rows), cutlass.Int32(1), choice, sums

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # f32 [R, V]
        mTemperature: cute.Tensor,  # f32 [R]
        mTopP: cute.Tensor,  # f32 [R]
        mBanned: cute.Tensor,  # i32 [R, N]
        mMask: cute.Tensor,  # u32 [M, W]
        mMaskRow: cute.Tensor,  # i32 [R]
        num_token_ids: cutlass.Int32,
        mChoice: cute.Tensor,  # i32 [R, CHOICE]
        mSums: cute.Tensor,  # f32 [R, parts * SUMS]
        stream: Any,
    ) -> None:
        of_row = mLogits, mTemperature, mTopP, mBanned, mMask, mMaskRow
        self.kernel(*of_row, num_token_ids, mChoice, mSums).launch(
            grid=[mLogits.shape[0] * self.parts, 1, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self,
        mLogits: cute.Tensor,
        mTemperature: cute.Tensor,
        mTopP: cute.Tensor,
        mBanned: cute.Tensor,
        mMask: cute.Tensor,
        mMaskRow: cute.Tensor,
        num_token_ids: cutlass.Int32,
        mChoice: cute.Tensor,
        mSums: cute.Tensor,
    ) -> None:
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        request, part = block // self.parts, block % self.parts
        mPicks, mRow = mChoice[request, None], mLogits[request, None]
        if mPicks[STATE] == TEST:
            divisor = divisor_of(mTemperature[request])
            sRow, sForbidden = shared(f32, self.slice), shared(u32, self.slice // BITS)
            sSums = shared(f32, SUMS, WARPS)
            forbidden = Forbidden(mBanned, mMask, mMaskRow)
            read_part(mRow, forbidden, request, part, num_token_ids, divisor, sForbidden, sRow, True, self)
            pivots = tuple(pivot_of(entry_of_pick(mRow, mPicks[j], divisor)) for j in range(PICKS))
            rSums = cute.make_rmem_tensor((SUMS,), f32)
            rSums.fill(0)
            cute.arch.sync_threads()
            counts = mTopP[request] >= 1.0  # then a top-k is asked for
            add_up_before(sRow, part * self.slice, mPicks[TOP].bitcast(f32), pivots, counts, rSums, self)
            sums_of_block(rSums, sSums)
            if thread == 0:
                for j in range_constexpr(SUMS):
                    mSums[request, part * SUMS + j] = rSums[j]

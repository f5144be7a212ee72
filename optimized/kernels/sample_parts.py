"""The first kernel of `sample_tokens`: each row is read, part by part, and of each part little is left: see
`sample_heads`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.kernel import Kernel
from optimized.kernels.any_strides import any_strides
from optimized.kernels.forbidden import BITS, Forbidden, forbidden_arguments
from optimized.kernels.ordered import entry_of, key_of, value_of
from optimized.kernels.philox import NoiseOf
from optimized.kernels.rows import rows_of, vector_of
from optimized.kernels.sample_few import FEW
from optimized.kernels.sample_heads import MOST_LISTED, Head, heads_of, write_head, write_list
from optimized.kernels.sample_largest import list_largest
from optimized.kernels.sample_part import THREADS, WARPS, RowParts, largest_of_block, read_part, shared
from optimized.kernels.sample_race import race
from optimized.kernels.sample_row import divisor_of, is_finite_key, raw_key

ALL_DRAWN, FEW_KEPT, ANY_KEPT = 0, 1, 2  # limits that are looked at: none; top-k up to FEW; all

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


class Memory(NamedTuple):
    """Shared memory of a block."""

    sRow: cute.Tensor  # f32 [slice]
    sForbidden: cute.Tensor  # u32 [slice / BITS]
    sFound: cute.Tensor  # u64 [MOST_LISTED]
    sEntries: cute.Tensor  # u64 [WARPS]
    sKeys: cute.Tensor  # u32 [2, WARPS]
    sCounts: cute.Tensor  # u32 [3]: of entries, of +infinity, of NaN
    sFloats: cute.Tensor  # f32 [THREADS]
    sReach: cute.Tensor  # f32 [1]


@cute.jit
def counts_few(top_k: cutlass.Int32, limits: cutlass.Int32) -> cutlass.Boolean:
    """Are only the first few of a row looked at?"""
    return limits >= FEW_KEPT and top_k > 0 and top_k <= FEW


@dataclass(frozen=True)
class SampleParts(RowParts, Kernel):
    """A block of threads for each part of each row."""

    row_length: int
    vector: int

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        logits = rows_of("float32", num_rows, self.row_length, self.vector)
        temperature, min_p = (vector_of("float32", num_rows) for _ in range(2))
        top_k, position, sample_index = (vector_of("int32", num_rows) for _ in range(3))
        settings = temperature, top_k, min_p, any_strides("uint32", num_rows, 2), position, sample_index
        numbers = cutlass.Int32(1), cutlass.Int32(ANY_KEPT)
        return logits, *settings, *forbidden_arguments(num_rows), *numbers, heads_of(num_rows, self.parts)

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # f32 [R, V]
        mTemperature: cute.Tensor,  # f32 [R]
        mTopK: cute.Tensor,  # i32 [R]
        mMinP: cute.Tensor,  # f32 [R]
        mSeed: cute.Tensor,  # u32 [R, 2]
        mPosition: cute.Tensor,  # i32 [R]
        mSampleIndex: cute.Tensor,  # i32 [R]
        mBanned: cute.Tensor,  # i32 [R, N]
        mMask: cute.Tensor,  # u32 [M, W]
        mMaskRow: cute.Tensor,  # i32 [R]
        num_token_ids: cutlass.Int32,
        limits: cutlass.Int32,
        mHeads: cute.Tensor,  # i64 [R, parts, LENGTH]
        stream: Any,
    ) -> None:
        settings = mTemperature, mTopK, mMinP, mSeed, mPosition, mSampleIndex
        self.kernel(mLogits, *settings, mBanned, mMask, mMaskRow, num_token_ids, limits, mHeads).launch(
            grid=[mLogits.shape[0] * self.parts, 1, 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mLogits: cute.Tensor,
        mTemperature: cute.Tensor,
        mTopK: cute.Tensor,
        mMinP: cute.Tensor,
        mSeed: cute.Tensor,
        mPosition: cute.Tensor,
        mSampleIndex: cute.Tensor,
        mBanned: cute.Tensor,
        mMask: cute.Tensor,
        mMaskRow: cute.Tensor,
        num_token_ids: cutlass.Int32,
        limits: cutlass.Int32,
        mHeads: cute.Tensor,
    ) -> None:
        cute.arch.griddepcontrol_launch_dependents()
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        request, part = block // self.parts, block % self.parts
        temperature = mTemperature[request]
        if temperature >= 0.0:
            memory = self.memory()
            if thread < 3:
                memory.sCounts[thread] = u32(0)
            divisor, mRow = divisor_of(temperature), mLogits[request, None]
            forbidden = Forbidden(mBanned, mMask, mMaskRow)
            of_part = forbidden, request, part, num_token_ids, divisor, memory.sForbidden, memory.sRow
            raw, own_top = read_part(mRow, *of_part, False, self)
            raw, top_key = self.largest_of_all(raw_key(raw), key_of(own_top), memory.sKeys)
            if not is_finite_key(raw):
                self.count_odd(mRow, part * self.slice, memory.sCounts)
            raw_top = value_of(top_key)
            top, own_top = raw_top / divisor, own_top / divisor
            first, bound, count = entry_of(top, i32(0)), u64(0), i32(0)
            if is_finite_key(key_of(top)):
                of_lists = memory.sFound, memory.sCounts, memory.sEntries
                if temperature > 0.0 and counts_few(mTopK[request], limits):
                    beside = memory.sFloats, memory.sReach
                    of_row = memory.sRow, part * self.slice, top, own_top, divisor, mTopK[request]
                    count = list_largest(*of_row, *beside, *of_lists, self)
                else:
                    first = self.first_of_part(memory, part * self.slice, top, own_top, divisor)
                if temperature > 0.0 and not counts_few(mTopK[request], limits):
                    seed = mSeed[request, 0], mSeed[request, 1]
                    noise = NoiseOf(u32(mPosition[request]), u32(mSampleIndex[request]), *seed)
                    tops = raw_top, top, divisor, mMinP[request], noise
                    count, bound = race(mRow, memory.sRow, part * self.slice, *tops, *of_lists, memory.sFloats, self)
            cute.arch.sync_threads()
            write_list(mHeads[request, part, None], memory.sFound, count, THREADS)
            if thread == 0:
                odd = i32(memory.sCounts[1]), i32(memory.sCounts[2])
                write_head(mHeads[request, part, None], Head(first, bound, raw, *odd), count)

    @cute.jit
    def memory(self) -> Memory:
        return Memory(
            shared(f32, self.slice),
            shared(u32, self.slice // BITS),
            shared(u64, MOST_LISTED),
            shared(u64, WARPS),
            shared(u32, 2, WARPS),
            shared(u32, 3),
            shared(f32, THREADS),
            shared(f32, 1),
        )

    @cute.jit
    def largest_of_all(
        self, one: cutlass.Uint32, other: cutlass.Uint32, sKeys: cute.Tensor
    ) -> tuple[cutlass.Uint32, cutlass.Uint32]:
        """Of all threads, in each of them."""
        warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
        one, other = cute.arch.warp_redux_sync(one, "max"), cute.arch.warp_redux_sync(other, "max")
        if lane == 0:
            sKeys[0, warp], sKeys[1, warp] = one, other
        cute.arch.sync_threads()
        one, other = sKeys[0, lane % WARPS], sKeys[1, lane % WARPS]
        return cute.arch.warp_redux_sync(one, "max"), cute.arch.warp_redux_sync(other, "max")

    @cute.jit
    def count_odd(self, mRow: cute.Tensor, first: cutlass.Int32, sCounts: cute.Tensor) -> None:
        """How many are +infinity, and how many NaN."""
        thread, _, _ = cute.arch.thread_idx()
        infinite, nan = u32(0), u32(0)
        end = cutlass.min(first + self.slice, self.row_length)
        for i in cutlass.range(first + thread, end, THREADS, unroll=1):
            bits = mRow[i].bitcast(u32)
            infinite += u32(1) if bits == u32(0x7F800000) else u32(0)
            nan += u32(1) if (bits & u32(0x7FFFFFFF)) > u32(0x7F800000) else u32(0)
        cute.arch.atomic_add(sCounts.iterator + 1, infinite, sem="relaxed", scope="cta")
        cute.arch.atomic_add(sCounts.iterator + 2, nan, sem="relaxed", scope="cta")

    @cute.jit
    def first_of_part(
        self,
        memory: Memory,
        first: cutlass.Int32,  # id of the part's first element
        top: cutlass.Float32,  # its largest quotient, and
        own_top: cutlass.Float32,  # that of what the thread wrote to sRow
        divisor: cutlass.Float32,
    ) -> cutlass.Uint64:
        """The entry of the part's largest quotient, of the lowest id, in every thread."""
        thread, _, _ = cute.arch.thread_idx()
        entry = u64(0)
        if own_top == top:
            gSlice = cute.zipped_divide(memory.sRow, (self.vector,))
            rValues = cute.make_rmem_tensor((self.vector,), f32)
            for i in cutlass.range(self.vectors, unroll=1):
                number = thread + i * THREADS
                if number < self.slice // self.vector:
                    cute.autovec_copy(gSlice[None, number], rValues)
                    largest = rValues[0]
                    for e in range_constexpr(1, self.vector):
                        largest = cute.arch.fmax(largest, rValues[e])
                    if largest / divisor == top and entry == u64(0):
                        for e in range_constexpr(self.vector - 1, -1, -1):
                            if rValues[e] / divisor == top:
                                entry = entry_of(top, first + number * self.vector + e)
        return largest_of_block(entry, memory.sEntries)

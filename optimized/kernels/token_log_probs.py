"""Log-probabilities on a GPU: a row is read once, into the shared memory of a cluster of blocks.

The likeliest tokens and their order, and the rank, are exactly the reference's, of any row. Rounding: the exponentials
that are added up are approximate, to 2^-22; their sum is float32, in an order that depends on the row's length alone.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.arguments import FLOAT32, INT32, output, require, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of
from optimized.kernels.any_strides import any_strides
from optimized.kernels.largest import (
    BINS,
    MOST_GATHERED,
    bring_together,
    count_distance,
    gather_within,
    put_in_order,
    reach_of,
    take_largest,
    tell_bins,
)
from optimized.kernels.ordered import id_of_entry, key_of, value_of, value_of_entry
from optimized.kernels.row_cluster import (
    THREADS,
    WARPS,
    RowCluster,
    arrive,
    check_length,
    heard_count,
    heard_max,
    heard_sum,
    meet,
    read_batch,
    tell,
    wait_for_all,
)
from optimized.kernels.row_slices import QUAD
from optimized.kernels.rows import common_vector, rows_of, vector_of
from optimized.kernels.sample_row import is_finite_key, raw_key

MOST_TOP = 64
_SLOTS = 5

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


class LogProbsMemory(NamedTuple):
    """Shared memory of a block."""

    sRow: cute.Tensor  # f32 [slice]
    sSlots: cute.Tensor  # u32 [cluster * WARPS, _SLOTS]
    sTotals: cute.Tensor  # u32 [BINS]
    sBins: cute.Tensor  # u32 [BINS]
    sCount: cute.Tensor  # u32 [1]
    sFound: cute.Tensor  # u64 [MOST_GATHERED]
    sTogether: cute.Tensor  # u64 [MOST_GATHERED]
    sOrdered: cute.Tensor  # u64 [MOST_TOP]


@dataclass(frozen=True)
class TokenLogProbs(RowCluster, Kernel):
    """Of each row, of one token and of the likeliest."""

    row_length: int
    num_top: int
    vector: int

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        logits = rows_of("float32", num_rows, self.row_length, self.vector)
        token_ids, ranks = (vector_of("int32", num_rows) for _ in range(2))
        columns = self.num_top or cute.sym_int()  # a constant must not be 0
        top_ids, top_log_probs = (any_strides(dtype, num_rows, columns) for dtype in ("int32", "float32"))
        return logits, token_ids, vector_of("float32", num_rows), ranks, top_ids, top_log_probs

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # f32 [R, V]
        mTokenIds: cute.Tensor,  # i32 [R]
        mLogProbs: cute.Tensor,  # f32 [R]
        mRanks: cute.Tensor,  # i32 [R]
        mTopIds: cute.Tensor,  # i32 [R, n]
        mTopLogProbs: cute.Tensor,  # f32 [R, n]
        stream: Any,
    ) -> None:
        self.kernel(mLogits, mTokenIds, mLogProbs, mRanks, mTopIds, mTopLogProbs).launch(
            grid=[mLogits.shape[0] * self.cluster, 1, 1],
            block=[THREADS, 1, 1],
            cluster=[self.cluster, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        mLogits: cute.Tensor,
        mTokenIds: cute.Tensor,
        mLogProbs: cute.Tensor,
        mRanks: cute.Tensor,
        mTopIds: cute.Tensor,
        mTopLogProbs: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        number = block // self.cluster
        rank = cute.arch.block_idx_in_cluster()
        first = rank * self.slice
        memory = self.memory()
        if thread < BINS:
            memory.sBins[thread], memory.sTotals[thread] = u32(0), u32(0)
        if thread == 0:
            memory.sCount[0] = u32(0)
        arrive(self)
        token = mTokenIds[number]
        chosen = mLogits[number, token if token >= 0 else 0]
        raw, own_top, larger = self.read(mLogits[number, None], first, chosen, memory.sRow)
        wait_for_all(self)  # they have their totals at 0
        tell(memory.sSlots[None, 0], cute.arch.warp_redux_sync(raw_key(raw), "max"), self)
        tell(memory.sSlots[None, 1], cute.arch.warp_redux_sync(key_of(own_top), "max"), self)
        tell(memory.sSlots[None, 2], cute.arch.warp_redux_sync(u32(larger), "add"), self)
        meet(self)
        is_usable = is_finite_key(heard_max(memory.sSlots[None, 0], self))
        top = value_of(heard_max(memory.sSlots[None, 1], self))
        larger = i32(heard_count(memory.sSlots[None, 2], self))
        base = f32(0.0) if top == -f32.inf else top
        if const_expr(self.num_top > 0):
            count_distance(memory.sBins, top - own_top)
            cute.arch.sync_threads()
            tell_bins(memory.sBins, memory.sTotals, self)
        own_total = cute.arch.warp_reduction(self.sum_of_exponentials(memory.sRow, base), operator.add)
        tell(memory.sSlots[None, 3], own_total.bitcast(u32), self)
        meet(self)
        total = heard_sum(memory.sSlots[None, 3], self)
        if total == 0.0:  # -infinity alone
            total = f32(1.0)
        log_total = cute.math.log(total)
        if not is_usable and top > -f32.inf:  # NaN, or infinity
            base = f32.nan
        if const_expr(self.num_top > 0):
            self.write_top(memory, first, top, is_usable, base, log_total, mTopIds, mTopLogProbs, number)
        if rank == 0 and thread == 0:
            mRanks[number] = larger + 1 if token >= 0 else 0
            mLogProbs[number] = (chosen - base) - log_total if token >= 0 else f32.nan

    @cute.jit
    def memory(self) -> LogProbsMemory:
        memory = SmemAllocator()
        return LogProbsMemory(
            memory.allocate_tensor(f32, cute.make_layout(self.slice), byte_alignment=32),
            memory.allocate_tensor(u32, cute.make_layout((self.cluster * WARPS, _SLOTS))),
            memory.allocate_tensor(u32, cute.make_layout(BINS), byte_alignment=32),
            memory.allocate_tensor(u32, cute.make_layout(BINS)),
            memory.allocate_tensor(u32, cute.make_layout(1)),
            memory.allocate_tensor(u64, cute.make_layout(MOST_GATHERED)),
            memory.allocate_tensor(u64, cute.make_layout(MOST_GATHERED)),
            memory.allocate_tensor(u64, cute.make_layout(MOST_TOP)),
        )

    @cute.jit
    def write_top(
        self,
        memory: LogProbsMemory,
        first: cutlass.Int32,
        top: cutlass.Float32,
        is_usable: cutlass.Boolean,
        base: cutlass.Float32,
        log_total: cutlass.Float32,
        mTopIds: cute.Tensor,
        mTopLogProbs: cute.Tensor,
        number: cutlass.Int32,
    ) -> None:
        """The likeliest tokens of a row. The totals of all bins must have been told."""
        thread, _, _ = cute.arch.thread_idx()
        rank = cute.arch.block_idx_in_cluster()
        gathered = i32(MOST_GATHERED + 1)
        if is_usable:
            reach = reach_of(memory.sTotals, i32(self.num_top))
            gather_within(memory.sRow, first, top, reach, memory.sFound, memory.sCount, self)
            gathered = bring_together(memory.sFound, memory.sCount, memory.sSlots[None, 4], memory.sTogether, self)
        if gathered > MOST_GATHERED or gathered < self.num_top:
            take_largest(memory.sRow, first, i32(self.num_top), memory.sSlots, memory.sOrdered, self)
        elif rank == 0:
            put_in_order(memory.sTogether, gathered, memory.sOrdered, MOST_TOP, THREADS)
        if rank == 0:
            cute.arch.sync_threads()
            if thread < self.num_top:
                entry = memory.sOrdered[thread]
                mTopIds[number, thread] = id_of_entry(entry)
                mTopLogProbs[number, thread] = (value_of_entry(entry) - base) - log_total

    @cute.jit
    def read(
        self,
        mRow: cute.Tensor,  # f32 [V]
        first: cutlass.Int32,
        chosen: cutlass.Float32,
        sRow: cute.Tensor,  # f32 [slice]
    ) -> tuple[cutlass.Float32, cutlass.Float32, cutlass.Int32]:
        """Fill sRow. Returns the thread's largest logit, NaN if there is one; the largest of the others; and how many
        are larger than the chosen one."""
        thread, _, _ = cute.arch.thread_idx()
        end = cutlass.min(self.slice, self.row_length - first)
        gSlice = cute.zipped_divide(sRow, (self.vector,))
        raw, top, larger = -f32.inf, -f32.inf, i32(0)
        for b in cutlass.range(-(-self.vectors // self.batch), unroll=1):
            number = thread + b * (self.batch * THREADS)
            rRow = read_batch(mRow, first // self.vector + number, (first + end) // self.vector, self)
            for i in range_constexpr(self.batch):
                for e in range_constexpr(self.vector):
                    raw = cute.arch.fmax(raw, rRow[e, i], nan=True)
                    top = cute.arch.fmax(top, rRow[e, i])
                    larger += i32(1) if rRow[e, i] > chosen else i32(0)
                if (number + i * THREADS) * self.vector < self.slice:
                    cute.autovec_copy(rRow[None, i], gSlice[None, number + i * THREADS])
        return raw, top, larger

    @cute.jit
    def sum_of_exponentials(self, sRow: cute.Tensor, base: cutlass.Float32) -> cutlass.Float32:
        """Of the thread's part of a row, over base's."""
        thread, _, _ = cute.arch.thread_idx()
        gRow = cute.zipped_divide(sRow, (QUAD,))
        rQuad = cute.make_rmem_tensor((QUAD,), f32)
        total = f32(0.0)
        for i in cutlass.range(self.quads, unroll=1):
            number = thread + i * THREADS
            if number < self.slice // QUAD:
                cute.autovec_copy(gRow[None, number], rQuad)
                for e in range_constexpr(QUAD):
                    total += cute.math.exp2((rQuad[e] - base) * f32(math.log2(math.e)), fastmath=True)
        return total


def token_log_probs(
    logits: Tensor,  # f32 [R, V], rows contiguous
    token_ids: Tensor,  # i32 [R]
    num_top: int,
    *,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # f32 [R], i32 [R], i32 [R, n], f32 [R, n]; n = min(num_top, V)
    """Each row's token: its log-probability and rank; and the n likeliest tokens with theirs: `out`, or new memory.

    Errors: ValueError for more than MOST_TOP tokens a row, and for rows that are too long; ValueError, TypeError for
    tensors that do not fit.
    """
    device = device_of(logits)
    num_rows, row_length = sizes_of("token_log_probs", "logits", logits, ("R", "V"), FLOAT32)
    num_top = min(operator.index(num_top), row_length)
    if not 0 <= num_top <= MOST_TOP:
        raise ValueError(f"token_log_probs: num_top is {num_top}; it must be 0 to {MOST_TOP}")
    check_length("token_log_probs", row_length)
    require("token_log_probs", "token_ids", token_ids, (num_rows,), INT32)
    given = out or (None,) * 4
    log_probs = output("token_log_probs", "out[0]", given[0], device, (num_rows,), "float32")
    ranks = output("token_log_probs", "out[1]", given[1], device, (num_rows,), "int32")
    top_ids = output("token_log_probs", "out[2]", given[2], device, (num_rows, num_top), "int32")
    top_log_probs = output("token_log_probs", "out[3]", given[3], device, (num_rows, num_top), "float32")
    out = log_probs, ranks, top_ids, top_log_probs
    if num_rows == 0:
        return out
    kernel = TokenLogProbs(row_length, num_top, common_vector(device.arch, row_length, logits))
    device.run(kernel, logits, token_ids, *out)
    return out

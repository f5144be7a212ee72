"""Penalties and biases on a GPU, in place: only logits of tokens that a request names are read and written.

A row is a cluster's; each of its blocks has a slice of the ids. It counts the row's history in shared memory, a word an
id: how often the output holds it, and whether the prompt does. Integers are counted, so the order is none. Then it goes
through the history once more: whoever comes to an id first takes its word out, and penalises its logit; which thread
that is makes no difference.

Rounding: that of the reference, after each operation, so that every bit is equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from optimized.arguments import FLOAT32, INT32, output, require, require_apart, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of
from optimized.kernels.any_strides import any_strides
from optimized.kernels.precise import product
from optimized.kernels.row_cluster import (
    THREADS,
    WARPS,
    RowCluster,
    arrive,
    check_length,
    heard_count,
    meet,
    tell,
    wait_for_all,
)
from optimized.kernels.row_slices import QUAD
from optimized.kernels.rows import rows_of, vector_of

LARGEST_REPETITION = 2.0**64  # the reference's limits
_IN_PROMPT = 0x80000000  # the bit of a word beside the count
_NONE = 0x7F800000  # the exponent bits of numbers that are not finite

u32 = cutlass.Uint32
f32 = cutlass.Float32
i32 = cutlass.Int32
Turned = tuple[cutlass.Int32, cutlass.Int32]


@dataclass(frozen=True)
class AdjustLogits(RowCluster, Kernel):
    """Blocks of one row lie beside each other."""

    row_length: int

    vector = 1

    def arguments(self) -> tuple[Any, ...]:
        num_rows, num_biases = cute.sym_int(), cute.sym_int()
        history, starts = any_strides("int32", cute.sym_int()), vector_of("int32", cute.sym_int())
        penalties = (vector_of("float32", num_rows) for _ in range(3))
        biases = any_strides("int32", num_rows, num_biases), any_strides("float32", num_rows, num_biases)
        logits, turned = rows_of("float32", num_rows, self.row_length, 1), rows_of("int32", num_rows, 2, 1)
        return logits, history, starts, vector_of("int32", num_rows), *penalties, *biases, turned

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # f32 [R, V]
        mHistory: cute.Tensor,  # i32 [H]
        mHistoryStart: cute.Tensor,  # i32 [R + 1]
        mPromptLens: cute.Tensor,  # i32 [R]
        mRepetition: cute.Tensor,  # f32 [R]
        mPresence: cute.Tensor,  # f32 [R]
        mFrequency: cute.Tensor,  # f32 [R]
        mBiasIds: cute.Tensor,  # i32 [R, B]
        mBias: cute.Tensor,  # f32 [R, B]
        mTurned: cute.Tensor,  # i32 [R, 2]
        stream: Any,
    ) -> None:
        of_history = mHistory, mHistoryStart, mPromptLens
        self.kernel(mLogits, *of_history, mRepetition, mPresence, mFrequency, mBiasIds, mBias, mTurned).launch(
            grid=[mLogits.shape[0] * self.cluster, 1, 1],
            block=[THREADS, 1, 1],
            cluster=[self.cluster, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        mLogits: cute.Tensor,
        mHistory: cute.Tensor,
        mHistoryStart: cute.Tensor,
        mPromptLens: cute.Tensor,
        mRepetition: cute.Tensor,
        mPresence: cute.Tensor,
        mFrequency: cute.Tensor,
        mBiasIds: cute.Tensor,
        mBias: cute.Tensor,
        mTurned: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rank = cute.arch.block_idx_in_cluster()
        request, first = block // self.cluster, rank * self.slice
        memory = SmemAllocator()
        sWords = memory.allocate_tensor(u32, cute.make_layout(self.slice), byte_alignment=16)
        sSlots = memory.allocate_tensor(u32, cute.make_layout((self.cluster * WARPS, 2)))
        arrive(self)
        mRow = mLogits[request, None]
        begin, end = mHistoryStart[request], mHistoryStart[request + 1]
        above, below = i32(0), i32(0)
        if end > begin:
            self.count(mHistory, begin, begin + mPromptLens[request], end, first, sWords)
            penalties = mRepetition[request], mPresence[request], mFrequency[request]
            above, below = self.penalize(mRow, mHistory, begin, end, first, sWords, *penalties)
        more_above, more_below = self.add_biases(mRow, mBiasIds[request, None], mBias[request, None], first)
        wait_for_all(self)
        tell(sSlots[None, 0], cute.arch.warp_redux_sync(u32(above + more_above), "add"), self)
        tell(sSlots[None, 1], cute.arch.warp_redux_sync(u32(below + more_below), "add"), self)
        meet(self)
        above, below = i32(heard_count(sSlots[None, 0], self)), i32(heard_count(sSlots[None, 1], self))
        if rank == 0 and thread == 0:
            mTurned[request, 0], mTurned[request, 1] = above, below

    @cute.jit
    def count(
        self,
        mHistory: cute.Tensor,
        begin: cutlass.Int32,
        prompt_end: cutlass.Int32,
        end: cutlass.Int32,
        first: cutlass.Int32,  # id of the block's first element
        sWords: cute.Tensor,  # u32 [slice]
    ) -> None:
        """Write how often a row's history holds each of the block's ids."""
        thread, _, _ = cute.arch.thread_idx()
        for i in cutlass.range(thread, self.slice // QUAD, THREADS, unroll=1):
            cute.zipped_divide(sWords, (QUAD,))[None, i].fill(u32(0))
        cute.arch.sync_threads()
        for i in cutlass.range(begin + thread, end, THREADS, unroll=4):
            place = mHistory[i] - first
            if self.has(place, first):
                if i < prompt_end:
                    cute.arch.atomic_or(sWords.iterator + place, u32(_IN_PROMPT), sem="relaxed", scope="cta")
                else:
                    cute.arch.atomic_add(sWords.iterator + place, u32(1), sem="relaxed", scope="cta")
        cute.arch.sync_threads()

    @cute.jit
    def penalize(
        self,
        mRow: cute.Tensor,  # f32 [V]
        mHistory: cute.Tensor,
        begin: cutlass.Int32,
        end: cutlass.Int32,
        first: cutlass.Int32,
        sWords: cute.Tensor,  # u32 [slice]; taken out
        repetition: cutlass.Float32,
        presence: cutlass.Float32,
        frequency: cutlass.Float32,
    ) -> Turned:
        """Of the ids that are counted, each once. The block's threads meet at the end."""
        thread, _, _ = cute.arch.thread_idx()
        repetition = cute.arch.fmin(cute.arch.fmax(repetition, f32(1 / LARGEST_REPETITION)), f32(LARGEST_REPETITION))
        above, below = i32(0), i32(0)
        for i in cutlass.range(begin + thread, end, THREADS, unroll=1):
            place = mHistory[i] - first
            if self.has(place, first):
                word = cute.arch.atomic_exch(sWords.iterator + place, u32(0), sem="relaxed", scope="cta")
                if word != u32(0):
                    count = i32(word & ~u32(_IN_PROMPT))
                    before = mRow[first + place]
                    value = before / repetition if before > 0.0 else before * repetition
                    value = value - product(frequency, count.to(f32))
                    value = value - product(presence, f32(1.0) if count > 0 else f32(0.0))
                    mRow[first + place] = value
                    turned = _turned(before, value)
                    above, below = above + turned[0], below + turned[1]
        cute.arch.sync_threads()
        return above, below

    @cute.jit
    def add_biases(
        self,
        mRow: cute.Tensor,  # f32 [V]
        mBiasIds: cute.Tensor,  # i32 [B]
        mBias: cute.Tensor,  # f32 [B]
        first: cutlass.Int32,
    ) -> Turned:
        thread, _, _ = cute.arch.thread_idx()
        above, below = i32(0), i32(0)
        for i in cutlass.range(thread, cute.size(mBiasIds), THREADS, unroll=1):
            place = mBiasIds[i] - first
            if self.has(place, first):
                before = mRow[first + place]
                value = before + mBias[i]
                mRow[first + place] = value
                turned = _turned(before, value)
                above, below = above + turned[0], below + turned[1]
        return above, below

    @cute.jit
    def has(self, place: cutlass.Int32, first: cutlass.Int32) -> cutlass.Boolean:
        """Is a place one of the block's slice?"""
        return place >= 0 and place < cutlass.min(self.slice, self.row_length - first)


@cute.jit
def _turned(before: cutlass.Float32, after: cutlass.Float32) -> Turned:
    """(1, 0) if a finite number has become NaN or +infinity, (0, 1) if it has become -infinity, else (0, 0)."""
    was_finite = before.bitcast(u32) & u32(_NONE) != u32(_NONE)
    is_none = was_finite and after.bitcast(u32) & u32(_NONE) == u32(_NONE)
    is_below = is_none and after == -f32.inf
    return i32(1) if is_none and not is_below else i32(0), i32(1) if is_below else i32(0)


def adjust_logits(
    logits: Tensor,  # f32 [R, V], rows contiguous; overwritten
    history: Tensor,  # i32 [H]: the tokens that rows have, one row after another; negative ones do not count
    history_start: Tensor,  # i32 [R + 1]: row r has history[history_start[r] : history_start[r + 1]]
    prompt_lens: Tensor,  # i32 [R]: how many of a row's history, from its first, are its prompt; the rest is its output
    repetition: Tensor,  # f32 [R], > 0; 1 does nothing
    presence: Tensor,  # f32 [R]; 0 does nothing
    frequency: Tensor,  # f32 [R]; 0 does nothing
    bias_ids: Tensor,  # i32 [R, B], -1 pads; the others of a row are distinct
    bias: Tensor,  # f32 [R, B]
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # f32 [R, V]: logits; i32 [R, 2]: `out`, or new memory
    """Penalise the tokens of a row's history, then add its biases.

    The second result says how many finite logits of a row became NaN or +infinity, and how many -infinity, so that
    `sample_tokens` can tell a model's infinities from those.

    Errors: ValueError, TypeError for tensors that do not fit, and for rows that are too long.
    """
    device = device_of(logits)
    num_rows, row_length = sizes_of("adjust_logits", "logits", logits, ("R", "V"), FLOAT32)
    check_length("adjust_logits", row_length)
    require_apart("adjust_logits", "logits", logits, row_length)
    sizes_of("adjust_logits", "history", history, ("H",), INT32)
    require("adjust_logits", "history_start", history_start, (num_rows + 1,), INT32)
    require("adjust_logits", "prompt_lens", prompt_lens, (num_rows,), INT32)
    penalties = {"repetition": repetition, "presence": presence, "frequency": frequency}
    for name, tensor in penalties.items():
        require("adjust_logits", name, tensor, (num_rows,), FLOAT32)
    _, num_biases = sizes_of("adjust_logits", "bias_ids", bias_ids, ("R", "B"), INT32, may_be_empty=True)
    require("adjust_logits", "bias_ids", bias_ids, (num_rows, num_biases), INT32)
    require("adjust_logits", "bias", bias, (num_rows, num_biases), FLOAT32)
    turned = output("adjust_logits", "out", out, device, (num_rows, 2), "int32")
    if num_rows > 0:
        of_history = history, history_start, prompt_lens
        device.run(AdjustLogits(row_length), logits, *of_history, *penalties.values(), bias_ids, bias, turned)
    return logits, turned

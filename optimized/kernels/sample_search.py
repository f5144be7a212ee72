"""The last kernel of `sample_tokens`: which pick is kept; and the token of rows in which none is.

    set: the whole row, or what top-k leaves of it
    repeat: draw from the set; if the limits keep what is drawn, that is the token; else the set ends before it

What is drawn is the best of the set. All that the limits keep is in it; so once it is kept itself, it is the best of
that. Each round leaves half of the probability on average: most rows need none, because a pick is kept.

A row is looked at by a cluster of blocks, of which each has some of its parts; they come from the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.kernel import Kernel
from optimized.kernels.any_strides import any_strides
from optimized.kernels.forbidden import BITS, Forbidden, forbidden_arguments
from optimized.kernels.ordered import entry_of_words, high_word, id_of_entry, key_of, low_word
from optimized.kernels.philox import NoiseOf
from optimized.kernels.rows import rows_of, vector_of
from optimized.kernels.sample_before import END, SUMS, add_up_before, pivot_of, sums_of_block
from optimized.kernels.sample_heads import CHOICE, DONE, PICKS, STATE, TEST, TOP
from optimized.kernels.sample_masses import entry_of_pick
from optimized.kernels.sample_part import THREADS, WARPS, RowParts, largest_of_block, read_part, shared
from optimized.kernels.sample_row import divisor_of
from optimized.kernels.sample_within import draw_within
from optimized.ptx.cluster import cluster_barrier, load_from_block

MOST_BLOCKS = 8  # of a cluster; more need not find room on a chip
# What a look at the row is for: the end of top-k; the mass of what that leaves; a token of the set; what precedes it.
FIND_TOP_K, ADD_UP, DRAW, COMPARE = range(4)

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


class Row(NamedTuple):
    """One row, and what is asked for."""

    mRow: cute.Tensor  # f32 [V]
    forbidden: Forbidden
    request: cutlass.Int32
    num_token_ids: cutlass.Int32
    divisor: cutlass.Float32  # its temperature
    min_p: cutlass.Float32
    noise: NoiseOf
    top: cutlass.Float32  # its largest quotient, finite


class Memory(NamedTuple):
    """Shared memory of a block."""

    sRow: cute.Tensor  # f32 [slice]
    sForbidden: cute.Tensor  # u32 [slice / BITS]
    sEntries: cute.Tensor  # u64 [WARPS]
    sSums: cute.Tensor  # f32 [SUMS, WARPS]
    sTold: cute.Tensor  # u32 [2, SUMS + 2]


@dataclass(frozen=True)
class SampleSearch(RowParts, Kernel):
    """A cluster of blocks for each row."""

    row_length: int
    vector: int

    @property
    def cluster(self) -> int:
        return min(MOST_BLOCKS, 1 << (self.parts - 1).bit_length())

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        logits = rows_of("float32", num_rows, self.row_length, self.vector)
        temperature, top_p, min_p = (vector_of("float32", num_rows) for _ in range(3))
        top_k, position, sample_index, out = (vector_of("int32", num_rows) for _ in range(4))
        settings = temperature, top_k, top_p, min_p, any_strides("uint32", num_rows, 2), position, sample_index
        choice, sums = rows_of("int32", num_rows, CHOICE, 1), rows_of("float32", num_rows, self.parts * SUMS, 1)
        return logits, *settings, *forbidden_arguments(num_rows), cutlass.Int32(1), choice, sums, out

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
        num_token_ids: cutlass.Int32,
        mChoice: cute.Tensor,  # i32 [R, CHOICE]
        mSums: cute.Tensor,  # f32 [R, parts * SUMS]
        mTokenIds: cute.Tensor,  # i32 [R]
        stream: Any,
    ) -> None:
        settings = mTemperature, mTopK, mTopP, mMinP, mSeed, mPosition, mSampleIndex
        beside = num_token_ids, mChoice, mSums, mTokenIds
        self.kernel(mLogits, *settings, mBanned, mMask, mMaskRow, *beside).launch(
            grid=[mLogits.shape[0] * self.cluster, 1, 1],
            block=[THREADS, 1, 1],
            cluster=[self.cluster, 1, 1],
            stream=stream,
            use_pdl=True,
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
        num_token_ids: cutlass.Int32,
        mChoice: cute.Tensor,
        mSums: cute.Tensor,
        mTokenIds: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        request = block // self.cluster
        cute.arch.griddepcontrol_wait()
        mPicks = mChoice[request, None]
        if mPicks[STATE] != DONE:
            seed = mSeed[request, 0], mSeed[request, 1]
            noise = NoiseOf(u32(mPosition[request]), u32(mSampleIndex[request]), *seed)
            of_part = mLogits[request, None], Forbidden(mBanned, mMask, mMaskRow), request, num_token_ids
            beside = divisor_of(mTemperature[request]), mMinP[request], noise, mPicks[TOP].bitcast(f32)
            token = self.token_of(Row(*of_part, *beside), mTopK[request], mTopP[request], mPicks, mSums[request, None])
            if thread == 0 and block % self.cluster == 0:
                mTokenIds[request] = token

    @cute.jit
    def token_of(
        self,
        of: Row,
        top_k: cutlass.Int32,
        top_p: cutlass.Float32,
        mPicks: cute.Tensor,  # i32 [CHOICE]
        mSums: cute.Tensor,  # f32 [parts * SUMS]
    ) -> cutlass.Int32:
        """In every thread of the cluster. What is compared with a limit is a number of tokens, if only a top-k is asked
        for, or else a mass of probability."""
        memory = self.memory()
        by_count, by_mass = top_k > 0 and top_k < self.row_length, top_p < 1.0
        token, limit, step = i32(-1), f32(top_k), i32(DRAW)
        last = u64(END)  # what is kept comes before it
        rSums = cute.make_rmem_tensor((SUMS,), f32)
        if mPicks[STATE] == TEST:
            self.sums_of_parts(mSums, rSums)
            limit = top_p * rSums[0] if by_mass else limit
            token, last = self.first_kept(of, mPicks, rSums, limit)
        elif by_mass:
            step = i32(FIND_TOP_K) if by_count else i32(ADD_UP)
        pick, turn = i32(0), i32(0)
        low, high, width = last, entry_of_words(key_of(of.top), u32(0xFFFFFFFF)), u64(0)
        words = last, last, last
        while token < 0:
            if step == FIND_TOP_K:
                words = low + width, low + width * u64(2), low + width * u64(3)
            elif step == ADD_UP:
                words = last, last, last
            counts = step == FIND_TOP_K or not by_mass
            best = self.look(of, last, words, step == DRAW, counts, rSums, turn, memory)
            turn ^= 1
            if step == FIND_TOP_K:  # a word before which just top_k come, or all if there are no more
                for j in range_constexpr(PICKS):
                    number = i32(rSums[1 + j])
                    is_found = number == top_k or (number < top_k and width == u64(0))
                    last, step = words[j] if is_found else last, i32(ADD_UP) if is_found else step
                    low = words[j] if number > top_k and words[j] > low else low
                    high = words[j] if number < top_k and words[j] < high else high
                width = (high - low) >> u64(2) if high - low >= u64(4) else u64(1)
            elif step == ADD_UP:
                limit, step = top_p * rSums[1], i32(DRAW)
            elif step == DRAW:
                pick, step = id_of_entry(best), i32(COMPARE)
                entry = entry_of_pick(of.mRow, pick, of.divisor)
                words = entry, entry, entry
            else:
                step, last = i32(DRAW), words[0]
                if rSums[1] < limit or rSums[1] == 0.0:  # the first is kept in any case
                    token = pick
        cluster_barrier(self.cluster)  # none ends while others may read what it told
        return token

    @cute.jit
    def memory(self) -> Memory:
        return Memory(
            shared(f32, self.slice),
            shared(u32, self.slice // BITS),
            shared(u64, WARPS),
            shared(f32, SUMS, WARPS),
            shared(u32, 2, SUMS + 2),
        )

    @cute.jit
    def sums_of_parts(self, mSums: cute.Tensor, rSums: cute.Tensor) -> None:
        """What `sample_masses` told."""
        rSums.fill(0)
        for part in cutlass.range(self.parts, unroll=1):
            for j in range_constexpr(SUMS):
                rSums[j] += mSums[part * SUMS + j]

    @cute.jit
    def first_kept(
        self, of: Row, mPicks: cute.Tensor, rSums: cute.Tensor, limit: cutlass.Float32
    ) -> tuple[cutlass.Int32, cutlass.Uint64]:
        """The first pick before which there is less than the limit, or -1; and the first entry of those that are not
        kept: of END, if none is."""
        token, last = i32(-1), u64(END)
        for j in range_constexpr(PICKS):
            pick = mPicks[j]
            if token < 0 and pick >= 0:
                if rSums[1 + j] < limit:
                    token = pick
                else:
                    entry = entry_of_pick(of.mRow, pick, of.divisor)
                    last = entry if entry > last else last
        return token, last

    @cute.jit
    def look(
        self,
        of: Row,
        last: cutlass.Uint64,  # what comes before it is drawn from
        words: tuple[cutlass.Uint64, cutlass.Uint64, cutlass.Uint64],  # entries, or words between entries
        draws: cutlass.Boolean,
        counts: cutlass.Boolean,
        rSums: cute.Tensor,  # f32 [SUMS] in registers
        turn: cutlass.Int32,  # 0 or 1: what is told in one round may still be read while the next is told
        memory: Memory,
    ) -> cutlass.Uint64:
        """If it draws, the largest entry (perturbed quotient, id) of those before `last` that min-p keeps; if not,
        rSums becomes what comes before the words (`add_up_before`). In every thread of the cluster."""
        best = u64(0)
        rSums.fill(0)
        for part in cutlass.range(cute.arch.block_idx_in_cluster(), self.parts, self.cluster, unroll=1):
            of_part = of.forbidden, of.request, part, of.num_token_ids, of.divisor, memory.sForbidden, memory.sRow
            read_part(of.mRow, *of_part, True, self)
            cute.arch.sync_threads()
            if draws:
                own = draw_within(memory.sRow, part * self.slice, of.top, pivot_of(last), of.min_p, of.noise, self)
                best = own if own > best else best
            else:
                pivots = tuple(pivot_of(word) for word in words)
                add_up_before(memory.sRow, part * self.slice, of.top, pivots, counts, rSums, self)
            cute.arch.sync_threads()
        best = largest_of_block(best, memory.sEntries)
        sums_of_block(rSums, memory.sSums)
        sTold = memory.sTold[turn, None]
        sTold[SUMS], sTold[SUMS + 1] = high_word(best), low_word(best)
        for j in range_constexpr(SUMS):
            sTold[j] = rSums[j].bitcast(u32)
        cluster_barrier(self.cluster)
        rSums.fill(0)
        for block in range_constexpr(self.cluster):
            told = tuple(load_from_block(sTold.iterator + j, i32(block)) for j in range(SUMS + 2))
            for j in range_constexpr(SUMS):
                rSums[j] += told[j].bitcast(f32)
            other = entry_of_words(told[SUMS], told[SUMS + 1])
            best = other if other > best else best
        return best

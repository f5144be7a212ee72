"""The kernel of paged decode attention: see `paged_attention`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP
from optimized.kernels.grid_barrier import grid_barrier
from optimized.kernels.heads import heads_of
from optimized.kernels.kv_cache import caches_of
from optimized.kernels.paged_attention_chunk import PIECE
from optimized.kernels.paged_attention_launch import CHUNK, pieces_of_thread, ring_bytes
from optimized.kernels.paged_attention_merge import SHARE, finish_strand, share_of_strand
from optimized.kernels.paged_attention_run import attend_run, clear_idle, shared
from optimized.kernels.paged_attention_split import SPLIT_CURSOR, number_splits
from optimized.kernels.paged_attention_sum import CHANNELS
from optimized.kernels.rows import rows_of, vector_of


@dataclass(frozen=True)
class PagedAttention(Kernel):
    """See `paged_attention_launch.AttentionLaunch` for what is not a shape."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    scale: float
    split: int
    splits_per_span: int
    warps: int
    stages: int
    tiles: int
    rows: int
    passes: int
    capacity: int
    blocks: int
    is_cut: bool  # may blocks share a strand?
    spares_registers: bool
    pdl: bool
    cache_vector: int  # elements to whose multiples the caches' blocks are aligned
    vector: int  # and the rows of q and out

    @property
    def waiting_blocks(self) -> int:
        return self.blocks if self.is_cut else 0

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def strands(self) -> int:
        return self.num_kv_heads * self.passes

    @property
    def steps(self) -> int:
        """Chunks of a warp's part of a split."""
        return self.split // (self.warps * CHUNK)

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def scale_log2(self) -> float:
        return self.scale * math.log2(math.e)

    @property
    def is_aligned(self) -> bool:
        return self.cache_vector >= PIECE

    @property
    def pieces(self) -> int:
        return pieces_of_thread(self.rows, self.head_dim, self.warps)

    @property
    def merge_words(self) -> int:
        return ring_bytes(self.warps, self.stages, self.head_dim) // 4

    def arguments(self) -> tuple[Any, ...]:
        num_tokens, num_requests = cute.sym_int(), cute.sym_int()
        q, out = (heads_of(self.dtype, num_tokens, self.num_heads, self.head_dim, self.vector) for _ in range(2))
        caches = caches_of(self.dtype, self.num_kv_heads, self.block_size, self.head_dim, self.cache_vector)
        table = rows_of("int32", num_requests, cute.sym_int(), 1)
        query_start, seq_lens = vector_of("int32", cute.sym_int()), vector_of("int32", num_requests)
        length = self.head_dim + CHANNELS
        kept = make_fake_tensor(
            cutlass.Float32, (cute.sym_int(), self.rows, length), (self.rows * length, length, 1), assumed_align=16
        )
        return q, *caches, table, query_start, seq_lens, kept, vector_of("int32", 1), out

    @cute.jit
    def __call__(
        self,
        mQ: cute.Tensor,  # [T, Nq, D]
        mKCache: cute.Tensor,  # [B, Nkv, bs, D]
        mVCache: cute.Tensor,  # [B, Nkv, bs, D]
        mTable: cute.Tensor,  # i32 [R, M]
        mQueryStart: cute.Tensor,  # i32 [R + 1]
        mSeqLens: cute.Tensor,  # i32 [R]
        mKept: cute.Tensor,  # f32 [blocks * slots, rows, D + 4], scratch
        mCounter: cute.Tensor,  # i32 [1]
        mOut: cute.Tensor,  # [T, Nq, D]
        stream: Any,
    ) -> None:
        self.kernel(mQ, mKCache, mVCache, mTable, mQueryStart, mSeqLens, mKept, mCounter, mOut).launch(
            grid=[self.blocks, 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
            cooperative=self.is_cooperative,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(
        self,
        mQ: cute.Tensor,
        mKCache: cute.Tensor,
        mVCache: cute.Tensor,
        mTable: cute.Tensor,
        mQueryStart: cute.Tensor,
        mSeqLens: cute.Tensor,
        mKept: cute.Tensor,
        mCounter: cute.Tensor,
        mOut: cute.Tensor,
    ) -> None:
        sRing = shared(mKCache.element_type, self.warps, self.stages, 2, CHUNK * self.head_dim)
        sBegin = shared(cutlass.Int32, self.capacity + 2)
        sSums = shared(cutlass.Int32, self.warps, 2)
        total, longest = number_splits(mQueryStart, mSeqLens, sBegin, sSums, self.split)
        total = total * self.strands
        attend_run(sRing, sBegin, total, mQ, mKCache, mVCache, mTable, mQueryStart, mSeqLens, mKept, mOut, self)
        if const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()  # blocks without a run have not waited yet, and they write too
        clear_idle(mQueryStart, mSeqLens, mOut, self)
        if const_expr(self.is_cut):  # noqa: SIM102, the outer condition is of compile time
            if longest > 1:  # some strand may be cut
                words = cute.recast_ptr(sRing.iterator, dtype=cutlass.Int32)
                share = cute.make_rmem_tensor(SHARE, cutlass.Int32)
                cursor = cute.make_rmem_tensor(SPLIT_CURSOR, cutlass.Int32)
                slots, sCounts = mKept.shape[0] // self.blocks, sSums[None, 0]
                cute.arch.sync_threads()  # no warp attends any more
                share_of_strand(share, cursor, words, mQueryStart, mSeqLens, sBegin, sCounts, total, slots, self)
                grid_barrier(mCounter, self.blocks)
                if const_expr(self.pdl):
                    cute.arch.griddepcontrol_launch_dependents()  # every block is resident: none is kept out
                finish_strand(share, cursor, words, mKept, mOut, self)

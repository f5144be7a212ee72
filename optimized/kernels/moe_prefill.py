"""The dispatch of many tokens (prefill): a launch that routes, and one that copies.

The copy is apart because its blocks are many and not held to one a multiprocessor, as those are that wait for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.compile.kernel import Kernel
from optimized.kernels.moe_routing import THREADS, list_of, route_over_blocks
from optimized.kernels.rows import itemsize, load_row, rows_of, store_row, vector_of


@dataclass(frozen=True)
class MoeRoute(Kernel):
    """Routing alone, over all blocks: a cooperative launch."""

    experts_per_token: int
    num_experts: int
    tile: int
    blocks: int
    items: int

    @property
    def is_cooperative(self) -> bool:
        return True

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        ids, row_of = (rows_of("int32", num_tokens, self.experts_per_token, 1) for _ in range(2))
        counts, counter = rows_of("int32", self.blocks, self.num_experts, 1), vector_of("int32", 1, 1)
        return ids, counts, counter, vector_of("int32", self.num_experts + 1, 1), list_of(cute.sym_int()), row_of

    @cute.jit
    def __call__(
        self,
        mIds: cute.Tensor,  # i32 [T, K]
        mCounts: cute.Tensor,  # i32 [blocks, E], scratch
        mCounter: cute.Tensor,  # i32 [1]
        mOffsets: cute.Tensor,  # i32 [E + 1]
        mSrc: cute.Tensor,  # i32 [R]
        mRowOf: cute.Tensor,  # i32 [T, K]
        stream: Any,
    ) -> None:
        self.kernel(mIds, mCounts, mCounter, mOffsets, mSrc, mRowOf).launch(
            grid=[self.blocks, 1, 1], block=[THREADS, 1, 1], stream=stream, cooperative=True
        )

    @cute.kernel
    def kernel(
        self,
        mIds: cute.Tensor,
        mCounts: cute.Tensor,
        mCounter: cute.Tensor,
        mOffsets: cute.Tensor,
        mSrc: cute.Tensor,
        mRowOf: cute.Tensor,
    ) -> None:
        route_over_blocks(mIds, mCounts, mCounter, mOffsets, mSrc, mRowOf, self.tile, self.items)


@dataclass(frozen=True)
class MoeGatherRows(Kernel):
    """The copy alone: each row by a few threads."""

    hidden_size: int
    dtype: str
    vector: int
    vectors: int
    threads_per_row: int
    rows_per_block: int

    @property
    def widest_access(self) -> int:
        return self.vector * itemsize(self.dtype)

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        x = rows_of(self.dtype, cute.sym_int(), self.hidden_size, self.vector)
        return x, list_of(num_rows), rows_of(self.dtype, num_rows, self.hidden_size, self.vector)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mSrc: cute.Tensor,  # i32 [R]
        mRows: cute.Tensor,  # [R, H]
        stream: Any,
    ) -> None:
        self.kernel(mX, mSrc, mRows).launch(
            grid=[cute.ceil_div(mRows.shape[0], self.rows_per_block), 1, 1],
            block=[self.threads_per_row * self.rows_per_block, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mSrc: cute.Tensor, mRows: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.rows_per_block + thread // self.threads_per_row
        lane = thread % self.threads_per_row
        is_row = row < mRows.shape[0]
        token = cutlass.Int32(-1)
        if is_row:
            token = mSrc[row]
        rX = load_row(mX[token, None], lane, token >= 0, self.vector, self.vectors, self.threads_per_row)
        store_row(rX, mRows[row, None], lane, is_row, self.threads_per_row)

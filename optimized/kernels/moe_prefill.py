"""The dispatch of many tokens (prefill): a launch that routes, and one that copies.

The copy is apart because its blocks are many and not held to one a multiprocessor, as those are that wait for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.kernel import Kernel
from optimized.kernels.moe_routing import THREADS, route_over_blocks
from optimized.kernels.rows import Vectorized, load_row, rows_of, store_row, vector_of

ROWS_CLEARED = 64  # rows that a group of threads looks through for padding


@dataclass(frozen=True)
class MoeRoute(Kernel):
    """Routing alone, over all blocks: a cooperative launch."""

    experts_per_token: int
    num_experts: int
    tile: int
    blocks: int
    items: int

    @property
    def waiting_blocks(self) -> int:
        return self.blocks

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        ids, row_of = (rows_of("int32", num_tokens, self.experts_per_token, 1) for _ in range(2))
        counts, counter = rows_of("int32", self.blocks, self.num_experts, 1), vector_of("int32", 1)
        return (
            ids,
            counts,
            counter,
            vector_of("int32", self.num_experts + 1),
            vector_of("int32", cute.sym_int()),
            row_of,
        )

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
class MoeScatterRows(Vectorized, Kernel):
    """The copy alone: a few threads read a token once, and write it to each of its rows; others clear the padding.

    By row instead, each token would be read K times, long after each other: experts' rows lie apart.
    """

    hidden_size: int
    experts_per_token: int
    dtype: str
    vector: int
    vectors: int
    threads_per_row: int
    rows_per_block: int

    def arguments(self) -> tuple[Any, ...]:
        num_tokens, num_rows = cute.sym_int(), cute.sym_int()
        x = rows_of(self.dtype, num_tokens, self.hidden_size, self.vector)
        row_of = rows_of("int32", num_tokens, self.experts_per_token, 1)
        return x, row_of, vector_of("int32", num_rows), rows_of(self.dtype, num_rows, self.hidden_size, self.vector)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mRowOf: cute.Tensor,  # i32 [T, K]
        mSrc: cute.Tensor,  # i32 [R]
        mRows: cute.Tensor,  # [R, H]
        stream: Any,
    ) -> None:
        token_blocks = cute.ceil_div(mX.shape[0], self.rows_per_block)
        row_blocks = cute.ceil_div(mRows.shape[0], self.rows_per_block * ROWS_CLEARED)
        self.kernel(mX, mRowOf, mSrc, mRows, token_blocks).launch(
            grid=[token_blocks + row_blocks, 1, 1],
            block=[self.threads_per_row * self.rows_per_block, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mRowOf: cute.Tensor,
        mSrc: cute.Tensor,
        mRows: cute.Tensor,
        token_blocks: cutlass.Int32,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        group, lane = thread // self.threads_per_row, thread % self.threads_per_row
        part = (self.vector, self.vectors, self.threads_per_row)
        if block < token_blocks:
            token = block * self.rows_per_block + group
            is_token = token < mX.shape[0]
            rRow = cute.make_rmem_tensor(self.experts_per_token, cutlass.Int32)
            rRow.fill(-1)
            if is_token:
                for k in range_constexpr(self.experts_per_token):
                    rRow[k] = mRowOf[token, k]
            rX = load_row(mX[token, None], lane, is_token, *part)
            for k in range_constexpr(self.experts_per_token):
                store_row(rX, mRows[rRow[k], None], lane, rRow[k] >= 0, self.threads_per_row)
        else:
            first = ((block - token_blocks) * self.rows_per_block + group) * ROWS_CLEARED
            rZero = cute.make_rmem_tensor((self.vector, self.vectors), mRows.element_type)
            rZero.fill(0)
            for number in range(ROWS_CLEARED):
                row = first + number
                token = cutlass.Int32(0)
                if row < mRows.shape[0]:
                    token = mSrc[row]
                store_row(rZero, mRows[row, None], lane, token < 0, self.threads_per_row)

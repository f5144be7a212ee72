"""The dispatch of a mixture of experts on a GPU: routing, and the copy of each token to the rows of its experts.

How rows are found is in `moe_routing`, which launch is taken in `moe_dispatch_launch`; here are the launches for few
tokens (decode), in `moe_prefill` those for many. Rows are copied in wide accesses, bit for bit; padding, and what lies
beyond the last expert, is filled with 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.arguments import INT32, output, require, require_at_least_one, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP, row_launch
from optimized.compile.residency import most_registers, require_resident
from optimized.device import Device, Tensor, device_of, dtype_of
from optimized.kernels.grid_barrier import grid_barrier
from optimized.kernels.moe_dispatch_launch import DispatchLaunch, dispatch_launch, dispatch_rows
from optimized.kernels.moe_prefill import MoeRoute, MoeScatterRows
from optimized.kernels.moe_routing import (
    THREADS,
    WARPS,
    add_up_warps,
    begin_experts,
    place_of,
    rank_pairs,
    route_over_blocks,
    shared_counts,
)
from optimized.kernels.rows import Vectorized, common_vector, load_row, rows_of, store_row, vector_of


@cute.jit
def copy_rows(
    mX: cute.Tensor,  # [T, H]
    sSrc: cute.Tensor,  # i32 [capacity]: the tokens of the block's rows
    mRows: cute.Tensor,  # [R, H]
    first_row: cutlass.Int32,
    rows_per_block: cutlass.Int32,
    vector: cutlass.Constexpr,
    threads_per_row: cutlass.Constexpr,
) -> None:
    """Fill a block's rows: a token each, or 0 where there is none."""
    thread, _, _ = cute.arch.thread_idx()
    lane = thread % threads_per_row
    vectors = -(-mX.shape[1] // (vector * threads_per_row))
    for i in cutlass.range(thread // threads_per_row, rows_per_block, THREADS // threads_per_row, unroll=1):
        row = first_row + i
        if row < mRows.shape[0]:
            token = sSrc[i]
            rX = load_row(mX[token, None], lane, token >= 0, vector, vectors, threads_per_row)
            store_row(rX, mRows[row, None], lane, cutlass.Boolean(True), threads_per_row)


@dataclass(frozen=True)
class MoeDispatchAlone(Vectorized, Kernel):
    """Each block routes all pairs for itself, and writes what concerns its own rows."""

    hidden_size: int
    experts_per_token: int
    num_experts: int
    tile: int
    dtype: str
    vector: int
    threads_per_row: int
    blocks: int
    items: int
    ranking_warps: int
    rows_capacity: int

    def arguments(self) -> tuple[Any, ...]:
        num_tokens, num_rows = cute.sym_int(), cute.sym_int()
        x = rows_of(self.dtype, num_tokens, self.hidden_size, self.vector)
        ids, row_of = (rows_of("int32", num_tokens, self.experts_per_token, 1) for _ in range(2))
        rows = rows_of(self.dtype, num_rows, self.hidden_size, self.vector)
        return x, ids, vector_of("int32", self.num_experts + 1), vector_of("int32", num_rows), row_of, rows

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mIds: cute.Tensor,  # i32 [T, K]
        mOffsets: cute.Tensor,  # i32 [E + 1]
        mSrc: cute.Tensor,  # i32 [R]
        mRowOf: cute.Tensor,  # i32 [T, K]
        mRows: cute.Tensor,  # [R, H]
        stream: Any,
    ) -> None:
        self.kernel(mX, mIds, mOffsets, mSrc, mRowOf, mRows).launch(
            grid=[self.blocks, 1, 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mIds: cute.Tensor,
        mOffsets: cute.Tensor,
        mSrc: cute.Tensor,
        mRowOf: cute.Tensor,
        mRows: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
        sCounts = shared_counts(self.ranking_warps, self.num_experts)
        sBegin, sSums = shared_counts(self.num_experts), shared_counts(WARPS)
        sSrc = shared_counts(self.rows_capacity)
        num_rows = mRows.shape[0]
        rows_per_block = cute.ceil_div(num_rows, self.blocks)
        first_row = block * rows_per_block

        rExpert, rRank = rank_pairs(mIds, cutlass.Int32(0), sCounts, self.items)
        for i in cutlass.range(thread, rows_per_block, THREADS, unroll=1):
            sSrc[i] = -1
        cute.arch.sync_threads()
        total = add_up_warps(sCounts)
        begin_experts(total, cutlass.Int32(0), mOffsets, sBegin, sSums, self.tile)
        for i in range_constexpr(self.items):
            pair = (warp * self.items + i) * WARP + lane
            if pair < mIds.shape[0] * self.experts_per_token:
                expert = rExpert[i]
                token, k = place_of(pair, self.experts_per_token)
                if expert >= 0:
                    row = sBegin[expert] + sCounts[warp, expert] + rRank[i]
                    if row >= first_row and row < first_row + rows_per_block:
                        sSrc[row - first_row] = token
                        mRowOf[token, k] = row
                elif block == 0:
                    mRowOf[token, k] = -1
        cute.arch.sync_threads()
        for i in cutlass.range(thread, rows_per_block, THREADS, unroll=1):
            if first_row + i < num_rows:
                mSrc[first_row + i] = sSrc[i]
        copy_rows(mX, sSrc, mRows, first_row, rows_per_block, self.vector, self.threads_per_row)


@dataclass(frozen=True)
class MoeDispatchTogether(Vectorized, Kernel):
    """Routing over all blocks, a grid barrier, then the copy: one cooperative launch."""

    hidden_size: int
    experts_per_token: int
    num_experts: int
    tile: int
    dtype: str
    vector: int
    threads_per_row: int
    blocks: int
    items: int
    rows_capacity: int

    @property
    def waiting_blocks(self) -> int:
        return self.blocks

    def arguments(self) -> tuple[Any, ...]:
        num_tokens, num_rows = cute.sym_int(), cute.sym_int()
        x = rows_of(self.dtype, num_tokens, self.hidden_size, self.vector)
        ids, row_of = (rows_of("int32", num_tokens, self.experts_per_token, 1) for _ in range(2))
        counts, counter = rows_of("int32", self.blocks, self.num_experts, 1), vector_of("int32", 1)
        rows = rows_of(self.dtype, num_rows, self.hidden_size, self.vector)
        offsets = vector_of("int32", self.num_experts + 1)
        return x, ids, counts, counter, offsets, vector_of("int32", num_rows), row_of, rows

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mIds: cute.Tensor,  # i32 [T, K]
        mCounts: cute.Tensor,  # i32 [blocks, E], scratch
        mCounter: cute.Tensor,  # i32 [1]
        mOffsets: cute.Tensor,  # i32 [E + 1]
        mSrc: cute.Tensor,  # i32 [R]
        mRowOf: cute.Tensor,  # i32 [T, K]
        mRows: cute.Tensor,  # [R, H]
        stream: Any,
    ) -> None:
        self.kernel(mX, mIds, mCounts, mCounter, mOffsets, mSrc, mRowOf, mRows).launch(
            grid=[self.blocks, 1, 1], block=[THREADS, 1, 1], stream=stream, cooperative=True
        )

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mIds: cute.Tensor,
        mCounts: cute.Tensor,
        mCounter: cute.Tensor,
        mOffsets: cute.Tensor,
        mSrc: cute.Tensor,
        mRowOf: cute.Tensor,
        mRows: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        sSrc = shared_counts(self.rows_capacity)
        num_rows = mRows.shape[0]
        rows_per_block = cute.ceil_div(num_rows, self.blocks)
        first_row = block * rows_per_block

        route_over_blocks(mIds, mCounts, mCounter, mOffsets, mSrc, mRowOf, self.tile, self.items)
        grid_barrier(mCounter, self.blocks)
        for i in cutlass.range(thread, rows_per_block, THREADS, unroll=1):
            if first_row + i < num_rows:
                sSrc[i] = mSrc[first_row + i]
        cute.arch.sync_threads()
        copy_rows(mX, sSrc, mRows, first_row, rows_per_block, self.vector, self.threads_per_row)


def moe_dispatch(
    x: Tensor,  # [T, H], rows contiguous
    expert_ids: Tensor,  # i32 [T, K], rows contiguous
    num_experts: int,
    *,
    tile: int,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give each (token, k) a row among those of its expert, and copy the token there.

    An id that is negative, or not below `num_experts`, goes to no expert. Nothing here depends on what the ids are
    but the values written: shapes, launches and addresses do not, so that a captured graph may be replayed.

    Returns `out`, or new memory: expert_offsets i32 [E + 1], src_token i32 [R], row_of i32 [T, K], rows [R, H] of x's
    dtype, where R is `dispatch_rows`.
    Errors: ValueError for more experts than can be dispatched to, and for a tile so large that a block's rows do not
    fit its shared memory; ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(x)
    num_experts, tile = index(num_experts), index(tile)
    require_at_least_one("moe_dispatch", "tile", tile)
    num_tokens, hidden_size = sizes_of("moe_dispatch", "x", x, ("T", "H"))
    _, experts_per_token = sizes_of("moe_dispatch", "expert_ids", expert_ids, ("T", "K"), INT32)
    require("moe_dispatch", "expert_ids", expert_ids, (num_tokens, experts_per_token), INT32)
    dtype = dtype_of(x)
    num_rows = dispatch_rows(num_tokens, experts_per_token, num_experts, tile=tile)
    offsets, src_token, row_of, rows = out or (None,) * 4
    offsets = output("moe_dispatch", "out[0]", offsets, device, (num_experts + 1,), "int32")
    src_token = output("moe_dispatch", "out[1]", src_token, device, (num_rows,), "int32")
    row_of = output("moe_dispatch", "out[2]", row_of, device, (num_tokens, experts_per_token), "int32")
    rows = output("moe_dispatch", "out[3]", rows, device, (num_rows, hidden_size), dtype)
    out = offsets, src_token, row_of, rows
    vector = common_vector(device.arch, hidden_size, x, rows)
    launch = dispatch_launch(
        device.arch,
        device.num_sms,
        num_tokens,
        experts_per_token,
        num_experts,
        tile=tile,
        row_accesses=-(-hidden_size // vector),
    )
    row = hidden_size, experts_per_token, num_experts, tile, dtype, vector, launch.threads_per_row
    # No tokens still write the offsets.
    if launch.variant == "alone":
        alone = MoeDispatchAlone(*row, launch.blocks, launch.items, launch.ranking_warps, launch.rows_capacity)
        device.run(alone, x, expert_ids, *out)
        return out
    scratch = _scratch(device, launch, num_experts)
    if launch.variant == "together":
        together = MoeDispatchTogether(*row, launch.blocks, launch.items, launch.rows_capacity)
        device.run(together, x, expert_ids, *scratch, *out)
        return out
    route = MoeRoute(experts_per_token, num_experts, tile, launch.blocks, launch.items)
    device.run(route, expert_ids, *scratch, offsets, src_token, row_of)
    copy = row_launch(device.num_sms, num_tokens, length=hidden_size, vector=vector)
    part = copy.vector, copy.vectors, copy.threads_per_row, copy.rows_per_block
    device.run(MoeScatterRows(hidden_size, experts_per_token, dtype, *part), x, row_of, src_token, rows)
    return out


def _scratch(device: Device, launch: DispatchLaunch, num_experts: int) -> tuple[Tensor, Tensor]:
    """What blocks that route together need: counts and a barrier. Errors: ValueError if they cannot all be resident."""
    require_resident(
        device.arch,
        device.num_sms,
        launch.blocks,
        threads=THREADS,
        registers=most_registers(device.arch, THREADS),
        shared_bytes=launch.shared_bytes,
    )
    return device.empty((launch.blocks, num_experts), "int32"), device.barrier_counter()

"""The list of chunks of a grouped product, which each block makes for itself, in shared memory."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.compile.launch_policy import WARP
from optimized.kernels.scan import sum_up_to_lane

EXPERT_SHIFT = 8  # a chunk's second word: its rows, and from this bit on its expert
TOKENS_HELD = 1024  # rows whose tokens a block keeps in shared memory


def shared_chunks(count: int) -> cute.Tensor:  # i32 [count, 2]
    """Of each chunk: its first row, and its rows + its expert << EXPERT_SHIFT."""
    layout = cute.make_layout((count, 2), stride=(2, 1))
    return SmemAllocator().allocate_tensor(cutlass.Int32, layout, byte_alignment=8)


def shared_words(count: int) -> cute.Tensor:  # i32 [count]
    return SmemAllocator().allocate_tensor(cutlass.Int32, cute.make_layout(count))


def list_bytes(num_experts: int, warps: int, *, gathers: bool) -> int:
    """Of shared memory, for all of these."""
    return 16 * num_experts + 4 * warps + gathers * 4 * TOKENS_HELD


def fresh(mWords: cute.Tensor, place: Any) -> cutlass.Int32:
    """An int32 at a place, from the L2 cache: a launch that has not waited yet, and only knows that what wrote it has
    ended, must not find what an earlier launch left in its multiprocessor's own cache."""
    pointer = cute.domain_offset(place, mWords).iterator
    return cute.arch.load(pointer, cutlass.Int32, sem="relaxed", scope="gpu")


@cute.jit
def load_begins(
    mOffsets: cute.Tensor,  # i32 [E + 1]
    threads: cutlass.Constexpr,
) -> cute.Tensor:  # i32 [n + 1], in registers
    """Where the rows of this thread's n experts begin, and where the last one's end. Nothing waits for them yet."""
    num_experts = cute.size(mOffsets) - 1
    each = -(-num_experts // threads)
    thread, _, _ = cute.arch.thread_idx()
    rBegin = cute.make_rmem_tensor((each + 1,), cutlass.Int32)
    for i in range_constexpr(each + 1):
        rBegin[i] = fresh(mOffsets, (cutlass.min(thread * each + i, num_experts),))
    return rBegin


@cute.jit
def add_up(
    value: cutlass.Int32,
    sTotals: cute.Tensor,  # i32 [warps]
    threads: cutlass.Constexpr,
) -> tuple[cutlass.Int32, cutlass.Int32]:
    """The sum of the values of all threads before this one, and of all. Every thread must call it."""
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    end = sum_up_to_lane(value)
    if lane == WARP - 1:
        sTotals[warp] = end
    cute.arch.sync_threads()
    before, total = end - value, cutlass.Int32(0)
    for i in range_constexpr(threads // WARP):
        of_warp = sTotals[i]
        before += of_warp if warp > i else 0
        total += of_warp
    return before, total


def chunks_of(num_rows: cutlass.Int32, most_rows: int) -> cutlass.Int32:
    return cutlass.Int32(cutlass.Uint32(num_rows + (most_rows - 1)) // most_rows)


@cute.jit
def put_chunks(
    sChunks: cute.Tensor,  # i32 [n, 2]
    place: cutlass.Int32,
    expert: cutlass.Int32,
    first: cutlass.Int32,  # row
    end: cutlass.Int32,
    most_rows: cutlass.Constexpr,
) -> cutlass.Int32:
    """Cut an expert's rows into chunks, put them into the list, and say where the next expert's go."""
    row = first
    while row < end:
        sChunks[place, 0] = row
        sChunks[place, 1] = cutlass.min(end - row, most_rows) + (expert << EXPERT_SHIFT)
        place += 1
        row += most_rows
    return place


@cute.jit
def list_chunks(
    rBegin: cute.Tensor,  # of `load_begins`
    sChunks: cute.Tensor,  # i32 [2 E, 2], see `shared_chunks`: is filled, experts in ascending order
    sTotals: cute.Tensor,  # i32 [warps]
    most_rows: cutlass.Constexpr,  # of a chunk
    threads: cutlass.Constexpr,
) -> cutlass.Int32:
    """List the chunks of all experts, and say how many there are. Every thread must call it."""
    each = cute.size(rBegin) - 1
    thread, _, _ = cute.arch.thread_idx()
    count = cutlass.Int32(0)
    for i in range_constexpr(each):
        count += chunks_of(rBegin[i + 1] - rBegin[i], most_rows)
    place, total = add_up(count, sTotals, threads)
    for i in range_constexpr(each):
        place = put_chunks(sChunks, place, thread * each + i, rBegin[i], rBegin[i + 1], most_rows)
    cute.arch.sync_threads()
    return total


@cute.jit
def hold_tokens(
    mTokens: cute.Tensor,  # i32 [R]
    sTokens: cute.Tensor,  # i32 [TOKENS_HELD]
    threads: cutlass.Constexpr,
) -> None:
    """Bring the tokens of the first rows to shared memory: to be read when threads have met."""
    thread, _, _ = cute.arch.thread_idx()
    for row in cutlass.range(thread, cutlass.min(mTokens.shape[0], TOKENS_HELD), threads, unroll=4):
        sTokens[row] = mTokens[row]


@cute.jit
def token_of(mTokens: cute.Tensor, sTokens: cute.Tensor, row: cutlass.Int32) -> cutlass.Int32:
    """The token of a row; -1 on padding."""
    token = cutlass.Int32(-1)
    if row < TOKENS_HELD:
        token = sTokens[row]
    if row >= TOKENS_HELD:
        token = mTokens[row]
    return token

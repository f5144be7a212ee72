"""A pipeline of cp.async that lacks one thing: the sums of the tiles of each row, each tile reversed.

A block a row, through a ring of stages in shared memory that all its threads fill and read. Whatever is left out, the
orderly schedule gives the right result. Lines that a test asks for end in a mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_tensor
from cutlass.memory import SmemAllocator

from optimized.compile.kernel import Kernel
from optimized.device import device_of
from reference.formats import Array

THREADS, VECTOR, STAGES, TILES = 64, 4, 3, 8
TILE = THREADS * VECTOR
FAULTS = ("", "no barrier", "a group too few")


@dataclass(frozen=True)
class SumTiles(Kernel):
    """One block a row."""

    fault: str

    def arguments(self) -> tuple[Any, ...]:
        rows = cute.sym_int()
        x = make_fake_tensor(
            cutlass.Int32, (rows, TILES, THREADS, VECTOR), (TILES * TILE, TILE, VECTOR, 1), assumed_align=16
        )
        out = make_fake_tensor(cutlass.Int32, (rows, TILE), (TILE, 1), assumed_align=16)
        return x, out

    @cute.jit
    def __call__(self, mX: cute.Tensor, mOut: cute.Tensor, stream: Any) -> None:
        self.kernel(mX, mOut).launch(grid=[mX.shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mOut: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        layout = cute.make_ordered_layout((STAGES, THREADS, VECTOR), order=(2, 1, 0))
        sRing = SmemAllocator().allocate_tensor(cutlass.Int32, layout, byte_alignment=16)
        copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Int32, num_bits_per_copy=128)
        for tile in cutlass.range_constexpr(STAGES - 1):
            cute.copy(copy, mX[row, tile, thread, None], sRing[tile, thread, None])
            cute.arch.cp_async_commit_group()
        rSum = cute.make_rmem_tensor(VECTOR, cutlass.Int32)
        rSum.fill(0)
        for tile in cutlass.range(TILES, unroll=1):
            cute.arch.cp_async_wait_group(STAGES - (1 if const_expr(self.fault == "a group too few") else 2))
            if const_expr(self.fault != "no barrier"):
                cute.arch.sync_threads()
            if tile + STAGES - 1 < TILES:
                ahead = tile + STAGES - 1
                cute.copy(copy, mX[row, ahead, thread, None], sRing[ahead % STAGES, thread, None])
            cute.arch.cp_async_commit_group()
            for i in cutlass.range_constexpr(VECTOR):
                rSum[i] += sRing[tile % STAGES, THREADS - 1 - thread, VECTOR - 1 - i]  # no barrier, a group too few
        for i in cutlass.range_constexpr(VECTOR):
            mOut[row, VECTOR * thread + i] = rSum[i]


def reference(x: Array, fault: str) -> Array:
    tiles: Array = x.reshape(len(x), TILES, TILE)[:, :, ::-1].sum(axis=1, dtype=x.dtype)
    return tiles


def sum_tiles(x: Any, fault: str, *, out: Any = None) -> Any:
    device = device_of(x)
    if out is None:
        out = device.empty((x.shape[0], TILE), "int32")
    device.run(SumTiles(fault), x, out)
    return out

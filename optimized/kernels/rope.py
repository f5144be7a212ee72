"""Rotary position embedding on a GPU, in place: a thread turns the same channels of a few heads.

Rounding: that of the reference, one at the end, and float32 arithmetic that is its own to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.arguments import INT32, require, require_apart, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.heads import heads_of
from optimized.kernels.items import ItemLaunch, access, item, item_launch, num_blocks
from optimized.kernels.rotary import require_tables, table_alignment, tables_of, turned_first, turned_second
from optimized.kernels.rows import Vectorized, common_vector, vector_of


@dataclass(frozen=True)
class Rope(Vectorized, Kernel):
    """Turn every head of token t by the angles of positions[t]."""

    num_heads: int
    head_dim: int
    dtype: str
    vector: int
    heads: int  # of each thread: cos and sin are read once for all of them
    table_alignment: int  # bytes
    threads: int

    @property
    def accesses(self) -> int:
        """Of half a head."""
        return self.head_dim // 2 // self.vector

    @property
    def row_items(self) -> int:
        return self.num_heads // self.heads * self.accesses

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        x = heads_of(self.dtype, num_tokens, self.num_heads, self.head_dim, self.vector)
        return x, vector_of("int32", num_tokens), *tables_of(self.head_dim, self.table_alignment)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, N, D]
        mPositions: cute.Tensor,  # [T]
        mCos: cute.Tensor,  # [P, D/2]
        mSin: cute.Tensor,  # [P, D/2]
        stream: Any,
    ) -> None:
        self.kernel(mX, mPositions, mCos, mSin).launch(
            grid=[num_blocks(mX.shape[0], self.row_items, ItemLaunch(self.threads, 1)), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mPositions: cute.Tensor, mCos: cute.Tensor, mSin: cute.Tensor) -> None:
        token, number = item(0, self.row_items, ItemLaunch(self.threads, 1))
        first_head = number // self.accesses * self.heads
        channels = number % self.accesses  # of the first half, in accesses
        rX = cute.make_rmem_tensor((self.vector, 2, self.heads), mX.element_type)
        rCos = cute.make_rmem_tensor((self.vector,), cutlass.Float32)
        rSin = cute.make_rmem_tensor((self.vector,), cutlass.Float32)
        if token < mX.shape[0]:
            position = mPositions[token]
            for i in range_constexpr(self.heads):
                gHead = mX[token, first_head + i, None]
                cute.autovec_copy(access(gHead, self.vector, channels), rX[None, 0, i])
                cute.autovec_copy(access(gHead, self.vector, channels + self.accesses), rX[None, 1, i])
            cute.autovec_copy(access(mCos[position, None], self.vector, channels), rCos)
            cute.autovec_copy(access(mSin[position, None], self.vector, channels), rSin)
            for i in range_constexpr(self.heads):
                for element in range_constexpr(self.vector):
                    first, second = (rX[element, half, i].to(cutlass.Float32) for half in range(2))
                    cos, sin = rCos[element], rSin[element]
                    rX[element, 0, i] = turned_first(first, second, cos, sin).to(mX.element_type)
                    rX[element, 1, i] = turned_second(first, second, cos, sin).to(mX.element_type)
                gHead = mX[token, first_head + i, None]
                cute.autovec_copy(rX[None, 0, i], access(gHead, self.vector, channels))
                cute.autovec_copy(rX[None, 1, i], access(gHead, self.vector, channels + self.accesses))


def rope(
    x: Tensor,  # [T, N, D], a token's heads contiguous; overwritten
    positions: Tensor,  # i32 [T], each in 0 .. P-1
    cos: Tensor,  # f32 [P, D/2], contiguous
    sin: Tensor,  # f32 [P, D/2], contiguous
) -> Tensor:  # x
    """Turn every head of token t by its position's angles.

    Errors: ValueError for an odd D; ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(x)
    num_tokens, num_heads, head_dim = sizes_of("rope", "x", x, ("T", "N", "D"))
    require("rope", "positions", positions, (num_tokens,), INT32)
    require_tables("rope", cos, sin, head_dim)
    require_apart("rope", "x", x, num_heads * head_dim)
    if num_tokens == 0:
        return x
    dtype = dtype_of(x)
    vector = common_vector(device.arch, head_dim // 2, x)
    num_items = num_tokens * num_heads * (head_dim // 2 // vector)
    heads = gcd(num_heads, 4)
    launch = item_launch(device.num_sms, num_items, items=heads)
    kernel = Rope(
        num_heads,
        head_dim,
        dtype,
        vector,
        launch.items,
        table_alignment(device.arch, vector, cos, sin),
        launch.threads,
    )
    device.run(kernel, x, positions, cos, sin)
    return x

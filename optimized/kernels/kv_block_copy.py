"""Copying whole KV blocks on a GPU: a pair's block is cut into equal parts, and each goes to a block of threads.

Precondition, as in the reference: a destination occurs once and is no source of the same call. What is copied
otherwise is not said: parts run in any order.
Rounding: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from optimized.arguments import INT32, require
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.items import ItemLaunch, access, item, item_launch, num_blocks
from optimized.kernels.kv_cache import cache_sizes, caches_of
from optimized.kernels.rows import Vectorized, common_vector


@dataclass(frozen=True)
class KvBlockCopy(Vectorized, Kernel):
    """k_cache[destination] = k_cache[source], v alike, for each pair (source, destination)."""

    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str
    vector: int
    threads: int
    items: int

    @property
    def row_items(self) -> int:
        return self.num_kv_heads * self.block_size * self.head_dim // self.vector

    def arguments(self) -> tuple[Any, ...]:
        caches = caches_of(self.dtype, self.num_kv_heads, self.block_size, self.head_dim, self.vector)
        pairs = make_fake_tensor(cutlass.Int32, (cute.sym_int(), 2), (2, 1), assumed_align=4)
        return *caches, pairs

    @cute.jit
    def __call__(
        self,
        mKCache: cute.Tensor,  # [B, Nkv, bs, D]
        mVCache: cute.Tensor,  # [B, Nkv, bs, D]
        mPairs: cute.Tensor,  # [N, 2]
        stream: Any,
    ) -> None:
        length = self.row_items * self.vector
        mK, mV = (  # [B, Nkv * bs * D]: a block is contiguous
            cute.make_tensor(
                mKCache.iterator, cute.make_layout((mKCache.shape[0], length), stride=(mKCache.stride[0], 1))
            ),
            cute.make_tensor(
                mVCache.iterator, cute.make_layout((mVCache.shape[0], length), stride=(mVCache.stride[0], 1))
            ),
        )
        self.kernel(mK, mV, mPairs).launch(
            grid=[num_blocks(mPairs.shape[0], self.row_items, ItemLaunch(self.threads, self.items)), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, mK: cute.Tensor, mV: cute.Tensor, mPairs: cute.Tensor) -> None:
        launch = ItemLaunch(self.threads, self.items)
        rDestination = cute.make_rmem_tensor((self.items,), cutlass.Int32)
        rK, rV = (
            cute.make_rmem_tensor((self.vector, self.items), mK.element_type),
            cute.make_rmem_tensor((self.vector, self.items), mK.element_type),
        )
        rDestination.fill(-1)
        for i in range_constexpr(self.items):
            pair, number = item(i, self.row_items, launch)
            if pair < mPairs.shape[0]:
                source = mPairs[pair, 0]
                if source >= 0:
                    rDestination[i] = mPairs[pair, 1]
                    cute.autovec_copy(access(mK[source, None], self.vector, number), rK[None, i])
                    cute.autovec_copy(access(mV[source, None], self.vector, number), rV[None, i])
        for i in range_constexpr(self.items):
            _, number = item(i, self.row_items, launch)
            if rDestination[i] >= 0:
                cute.autovec_copy(rK[None, i], access(mK[rDestination[i], None], self.vector, number))
                cute.autovec_copy(rV[None, i], access(mV[rDestination[i], None], self.vector, number))


def kv_block_copy(
    k_cache: Tensor,  # [B, Nkv, bs, D], blocks contiguous; overwritten
    v_cache: Tensor,  # [B, Nkv, bs, D], blocks contiguous; overwritten
    pairs: Tensor,  # i32 [N, 2]: source, destination; -1 for either copies nothing
) -> tuple[Tensor, Tensor]:  # (k_cache, v_cache)
    """Copy whole blocks within both caches. Errors: ValueError, TypeError for tensors that do not fit."""
    device = device_of(k_cache)
    _, num_kv_heads, block_size, head_dim = cache_sizes("kv_block_copy", k_cache, v_cache)
    dtype = dtype_of(k_cache)
    require("kv_block_copy", "pairs", pairs, (*pairs.shape[:1], 2), INT32)
    if pairs.shape[0] == 0:
        return k_cache, v_cache
    length = num_kv_heads * block_size * head_dim
    vector = common_vector(device.arch, length, k_cache, v_cache)
    launch = item_launch(device.num_sms, pairs.shape[0] * (length // vector), items=4)
    kernel = KvBlockCopy(num_kv_heads, block_size, head_dim, dtype, vector, launch.threads, launch.items)
    device.run(kernel, k_cache, v_cache, pairs)
    return k_cache, v_cache

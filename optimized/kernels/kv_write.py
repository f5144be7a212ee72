"""Writing keys and values into a paged KV cache on a GPU.

A block of threads takes one head of a few neighbouring tokens, and K and V of both. It copies them to their slots;
then it opens blocks of the cache for those of its tokens that are at offset 0.

Blocks of threads run in any order, so one that opens must not clear a slot that another has written. It therefore
clears only slots that NO token of the call writes, and finds out from `slot_mapping` alone. First it looks at the
bs - 1 tokens that follow: if they fill the block in order, as most of a prompt does, nothing is left to clear. If not,
it looks at the slots of all tokens. That is right for every mapping that names no slot twice, in any order, and costs
T reads from cache by each block of threads whose block of the cache stays partly empty: in a batch, one or two a
request.

Precondition: no slot is named twice (the reference lets the later token stay; here either may).
Rounding: that of the reference, none when k has the cache's dtype, otherwise once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr
from cutlass.memory import SmemAllocator

from optimized.arguments import FLOATS, require, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.heads import heads_of
from optimized.kernels.items import access
from optimized.kernels.kv_cache import cache_sizes, caches_of
from optimized.kernels.rows import common_vector, itemsize, vector_of

THREADS = 128  # of a block
_SCANNED = 8  # slots that a thread reads at once


@dataclass(frozen=True)
class KvWrite(Kernel):
    """k_cache[slot // bs, :, slot % bs] = k[t], v alike; a token at offset 0 clears what no token writes."""

    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    cache_dtype: str
    vector: int
    tokens: int  # of a block of threads: a power of two up to 32

    @property
    def widest_access(self) -> int:
        return self.vector * itemsize(self.dtype)

    @property
    def widest_store(self) -> int:
        return self.vector * itemsize(self.cache_dtype)

    @property
    def accesses(self) -> int:
        """Of a head."""
        return self.head_dim // self.vector

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        k, v = (heads_of(self.dtype, num_tokens, self.num_kv_heads, self.head_dim, self.vector) for _ in range(2))
        caches = caches_of(self.cache_dtype, self.num_kv_heads, self.block_size, self.head_dim, self.vector)
        return k, v, *caches, vector_of("int64", num_tokens)

    @cute.jit
    def __call__(
        self,
        mK: cute.Tensor,  # [T, Nkv, D]
        mV: cute.Tensor,  # [T, Nkv, D]
        mKCache: cute.Tensor,  # [B, Nkv, bs, D]
        mVCache: cute.Tensor,  # [B, Nkv, bs, D]
        mSlots: cute.Tensor,  # [T]
        stream: Any,
    ) -> None:
        self.kernel(mK, mV, mKCache, mVCache, mSlots).launch(
            grid=[cute.ceil_div(mSlots.shape[0], self.tokens) * self.num_kv_heads, 1, 1],
            block=[THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self, mK: cute.Tensor, mV: cute.Tensor, mKCache: cute.Tensor, mVCache: cute.Tensor, mSlots: cute.Tensor
    ) -> None:
        block, _, _ = cute.arch.block_idx()
        head = block % self.num_kv_heads
        first_token = block // self.num_kv_heads * self.tokens
        sIsWritten = SmemAllocator().allocate_tensor(cutlass.Int32, cute.make_layout(self.block_size))
        self.write(mK, mV, mKCache, mVCache, mSlots, first_token, head)

        # Lane i of every warp looks at token i, so that all warps agree on which of them open a block.
        lane = cute.arch.lane_idx()
        opens = cutlass.Boolean(False)
        if lane < self.tokens and first_token + lane < mSlots.shape[0]:
            slot = mSlots[first_token + lane]
            opens = slot >= 0 and slot % self.block_size == 0
        openers = cute.arch.vote_ballot_sync(opens)
        if openers != 0:
            for i in range(self.tokens):
                if (openers >> i) & 1 != 0:
                    self.open(mKCache, mVCache, mSlots, first_token + i, head, sIsWritten)

    @cute.jit
    def write(
        self,
        mK: cute.Tensor,
        mV: cute.Tensor,
        mKCache: cute.Tensor,
        mVCache: cute.Tensor,
        mSlots: cute.Tensor,
        first_token: cutlass.Int32,
        head: cutlass.Int32,
    ) -> None:
        """Copy one head of the block's tokens."""
        thread, _, _ = cute.arch.thread_idx()
        items = -(-self.tokens * self.accesses // THREADS)
        rSlot = cute.make_rmem_tensor((items,), cutlass.Int64)
        rK, rV = (
            cute.make_rmem_tensor((self.vector, items), mK.element_type),
            cute.make_rmem_tensor((self.vector, items), mK.element_type),
        )
        rSlot.fill(-1)
        for i in range_constexpr(items):
            token = (thread + i * THREADS) // self.accesses
            if token < self.tokens and first_token + token < mSlots.shape[0]:
                rSlot[i] = mSlots[first_token + token]
        for i in range_constexpr(items):
            token, number = (thread + i * THREADS) // self.accesses, (thread + i * THREADS) % self.accesses
            if rSlot[i] >= 0:
                cute.autovec_copy(access(mK[first_token + token, head, None], self.vector, number), rK[None, i])
                cute.autovec_copy(access(mV[first_token + token, head, None], self.vector, number), rV[None, i])
        rRounded = cute.make_rmem_tensor((self.vector,), mKCache.element_type)
        for i in range_constexpr(items):
            number = (thread + i * THREADS) % self.accesses
            if rSlot[i] >= 0:
                place = rSlot[i] // self.block_size, head, rSlot[i] % self.block_size, None
                rRounded.store(rK[None, i].load().to(mKCache.element_type))
                cute.autovec_copy(rRounded, access(mKCache[place], self.vector, number))
                rRounded.store(rV[None, i].load().to(mVCache.element_type))
                cute.autovec_copy(rRounded, access(mVCache[place], self.vector, number))

    @cute.jit
    def open(
        self,
        mKCache: cute.Tensor,
        mVCache: cute.Tensor,
        mSlots: cute.Tensor,
        token: cutlass.Int32,  # at offset 0
        head: cutlass.Int32,
        sIsWritten: cute.Tensor,  # [bs]: does a token of this call write that offset?
    ) -> None:
        """Clear one head of the slots of the token's block that no token writes. The whole block of threads calls it,
        and is together again when it returns."""
        thread, _, _ = cute.arch.thread_idx()
        num_tokens = mSlots.shape[0]
        slot = mSlots[token]
        for offset in range(thread, self.block_size, THREADS):
            is_next = cutlass.Int32(0)
            if token + offset < num_tokens:  # noqa: SIM102, `and` would load beyond the end
                if mSlots[token + offset] == slot + offset:
                    is_next = cutlass.Int32(1)
            sIsWritten[offset] = is_next
        cute.arch.sync_threads()
        gaps = cutlass.Int32(0)
        for offset in range(cute.arch.lane_idx(), self.block_size, WARP):
            gaps += 1 - sIsWritten[offset]
        is_filled = cute.arch.vote_all_sync(gaps == 0)  # the same in every warp
        cute.arch.sync_threads()  # all have read before one writes
        if not is_filled:
            for first in range(thread, num_tokens, _SCANNED * THREADS):
                rSlot = cute.make_rmem_tensor((_SCANNED,), cutlass.Int64)
                rSlot.fill(-1)
                for i in range_constexpr(_SCANNED):
                    if first + i * THREADS < num_tokens:
                        rSlot[i] = mSlots[first + i * THREADS]
                for i in range_constexpr(_SCANNED):
                    offset = rSlot[i] - slot
                    if offset >= 0 and offset < self.block_size:
                        sIsWritten[cutlass.Int32(offset)] = cutlass.Int32(1)
            cute.arch.sync_threads()
            rZero = cute.make_rmem_tensor((self.vector,), mKCache.element_type)
            rZero.fill(0)
            block = slot // self.block_size
            for number in range(thread, self.block_size * self.accesses, THREADS):
                offset = number // self.accesses
                if sIsWritten[offset] == 0:
                    place = block, head, offset, None
                    cute.autovec_copy(rZero, access(mKCache[place], self.vector, number % self.accesses))
                    cute.autovec_copy(rZero, access(mVCache[place], self.vector, number % self.accesses))
            cute.arch.sync_threads()


def tokens_per_block(num_sms: int, num_tokens: int, num_kv_heads: int, accesses: int) -> int:
    """Of a block of threads: as many as leave two blocks for each multiprocessor, and each thread at most 4 accesses
    to K and to V; at most the 32 lanes of a warp, which look at one each. accesses: of a head."""
    most = max(1, min(WARP, 4 * THREADS // accesses))
    tokens = 1
    while 2 * tokens <= most and num_tokens * num_kv_heads >= 2 * tokens * 2 * num_sms:
        tokens *= 2
    return tokens


def kv_write(
    k: Tensor,  # [T, Nkv, D], a token's heads contiguous
    v: Tensor,  # [T, Nkv, D], a token's heads contiguous
    k_cache: Tensor,  # [B, Nkv, bs, D], blocks contiguous; overwritten
    v_cache: Tensor,  # [B, Nkv, bs, D], blocks contiguous; overwritten
    slot_mapping: Tensor,  # i64 [T]: block * bs + offset, or -1, which writes nothing
) -> tuple[Tensor, Tensor]:  # (k_cache, v_cache)
    """Write T tokens into both caches. Precondition, which is not checked: no slot is named twice.

    Errors: ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(k)
    num_tokens, num_kv_heads, head_dim = sizes_of("kv_write", "k", k, ("T", "Nkv", "D"))
    dtype = dtype_of(k)
    require("kv_write", "v", v, k.shape, (dtype,))
    num_blocks, _, block_size, _ = cache_sizes("kv_write", k_cache, v_cache)
    require("kv_write", "k_cache", k_cache, (num_blocks, num_kv_heads, block_size, head_dim), FLOATS)
    require("kv_write", "slot_mapping", slot_mapping, (num_tokens,), ("int64",))
    if num_tokens == 0:
        return k_cache, v_cache
    vector = common_vector(device.arch, head_dim, k, v, k_cache, v_cache)
    kernel = KvWrite(
        num_kv_heads,
        head_dim,
        block_size,
        dtype,
        dtype_of(k_cache),
        vector,
        tokens_per_block(device.num_sms, num_tokens, num_kv_heads, head_dim // vector),
    )
    device.run(kernel, k, v, k_cache, v_cache, slot_mapping)
    return k_cache, v_cache

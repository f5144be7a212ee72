"""The attention of flash-attn-4 over a paged cache as a kernel of this panel, for Hopper and for Blackwell.

Blocks have the heads leading, [block, head, token, channel]; the library takes them with any strides, so it sees
[block, token, head, channel] without a copy. Where a block has as many tokens as a tile of keys, it is read whole by
the copy engine, the slots beyond a request's last key included: those must hold finite numbers, which they do, because
a block that is opened is filled with 0 (`kv_write`). Other sizes are read slot by slot, and no slot beyond the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.kernel import Kernel
from optimized.kernels.rows import DTYPES, itemsize, vector_of
from optimized.libraries import FLASH_ATTENTION, QUACK, library_versions, part_of_library

ALIGNMENT = 16  # bytes: where tensors, tokens and heads of them begin


@dataclass(frozen=True)
class PrefillAttention(Kernel):
    """softmax(q k^T scale) v, causal, for the queries that are each request's last tokens."""

    generation: int  # 9: Hopper; 10: Blackwell
    dtype: str
    head_dim: int
    group: int  # query heads that share a KV head
    scale: float
    tile_m: int  # queries
    tile_n: int  # keys
    packs_heads: bool  # a tile's queries are tokens times the heads of a group
    reads_blocks: bool  # whole, by the copy engine: tile_n is the block's size

    @property
    def constants(self) -> dict[str, Any]:
        return super().constants | library_versions(FLASH_ATTENTION, QUACK)

    def arguments(self) -> tuple[Any, ...]:
        vector = ALIGNMENT // itemsize(self.dtype)

        def tensor(*shape: Any) -> Any:
            strides = (*(cute.sym_int64(divisibility=vector) for _ in shape[1:]), 1)
            return make_fake_tensor(DTYPES[self.dtype], shape, strides, assumed_align=ALIGNMENT)

        tokens, heads, requests = cute.sym_int(), cute.sym_int(), cute.sym_int()
        q, out = (tensor(tokens, heads, cute.sym_int()) for _ in range(2))
        sizes = tuple(cute.sym_int() for _ in range(4))
        k_cache, v_cache = (tensor(*sizes) for _ in range(2))
        table = make_fake_tensor(cutlass.Int32, (requests, cute.sym_int()), (cute.sym_int64(), 1), assumed_align=4)
        return q, k_cache, v_cache, table, vector_of("int32", cute.sym_int()), vector_of("int32", requests), out

    @cute.jit
    def __call__(
        self,
        mQ: cute.Tensor,  # [T, Nq, D]
        mK: cute.Tensor,  # [B, Nkv, bs, D]
        mV: cute.Tensor,  # [B, Nkv, bs, D]
        mTable: cute.Tensor,  # i32 [R, M]
        mStarts: cute.Tensor,  # i32 [R + 1]
        mLens: cute.Tensor,  # i32 [R]
        mOut: cute.Tensor,  # [T, Nq, D]
        stream: Any,
    ) -> None:
        self.attention(mQ, mK, mV, mTable, mStarts, mLens, mOut, stream)

    def attention(
        self, mQ: Any, mK: Any, mV: Any, mTable: Any, mStarts: Any, mLens: Any, mOut: Any, stream: Any
    ) -> None:
        """The library's host code, traced into this one's."""
        by_token = [cute.make_tensor(one.iterator, cute.select(one.layout, mode=[0, 2, 1, 3])) for one in (mK, mV)]
        scale = cutlass.Float32(self.scale)
        tensors = mQ, *by_token, mOut, None, scale, mStarts, None, None, mLens, mTable
        self._forward(mQ.element_type)(*tensors, stream=stream)

    def _forward(self, element_type: Any) -> Any:
        common = {
            "is_causal": True,
            "pack_gqa": self.packs_heads,
            "paged_kv_non_tma": not self.reads_blocks,
        }
        heads = self.head_dim, self.head_dim, self.group
        if self.generation == 9:
            forward = part_of_library("flash_attn.cute.flash_fwd_sm90:FlashAttentionForwardSm90")
            tiles = {"tile_m": self.tile_m, "tile_n": self.tile_n, "num_stages": 2, "num_threads": 384}
            return forward(element_type, *heads, **common, **tiles, Q_in_regs=False)
        forward = part_of_library("flash_attn.cute.flash_fwd_sm100:FlashAttentionForwardSm100")
        return forward(
            *heads,
            **common,
            m_block_size=self.tile_m,
            n_block_size=self.tile_n,
            q_stage=1 if self.head_dim == 256 else 2,  # two tiles of queries do not fit tensor memory beside 256
            is_static_persistent=False,
            is_varlen_q=True,
        )

"""QK-norm, rotary embedding and KV write on a GPU: one launch over all heads of q, k and v.

A group of lanes holds a head, channel i beside channel i + D/2, so that a pair is turned without a shuffle. Heads of q
are overwritten in place, heads of k go from registers to their slot, heads of v are copied.

Rounding: that of the reference, to q's dtype after the norm and again after the rotation.

Opened blocks. The rest of a block whose first slot is written in this call becomes 0, and no thread block waits for
another: tokens of one sequence follow each other in a call, in the order of their slots, none left out, as an engine's
do. So token t, at offset o, is in a block that this call opens if token t - o has that block's first slot, and it is
the call's last one in it if token t + 1 has not the next slot. That token's groups clear the slots behind their own,
which no other token of the call writes.

Slots are below 2^31: more of them than any chip holds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.arguments import FLOATS, INT32, require, require_apart, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.dependent_launch import begin_dependent
from optimized.kernels.heads import (
    HeadLaunch,
    head_launch,
    heads_of,
    load_head,
    load_heads,
    norm_heads,
    place,
    store_heads,
)
from optimized.kernels.kv_cache import cache_sizes, caches_of
from optimized.kernels.rotary import require_tables, table_alignment, tables_of, turned_first, turned_second
from optimized.kernels.rows import Vectorized, common_vector, itemsize, vector_of


@dataclass(frozen=True)
class QkNormRopeKvWrite(HeadLaunch, Vectorized, Kernel):
    """A group of lanes takes one part of a token: heads of q, of k, or of v."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    weight_dtype: str
    slot_dtype: str
    eps: float
    weight_bias: float
    table_alignment: int  # bytes
    pdl: bool = False

    @property
    def q_parts(self) -> int:
        return self.parts(self.num_heads)

    @property
    def kv_parts(self) -> int:
        return self.parts(self.num_kv_heads)

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        q, k, v = (
            heads_of(self.dtype, num_tokens, count, self.head_dim, self.vector)
            for count in (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        )
        q_weight, k_weight = (vector_of(self.weight_dtype, self.head_dim, self.vector) for _ in range(2))
        positions, slot_mapping = (vector_of(dtype, num_tokens) for dtype in ("int32", self.slot_dtype))
        tables = tables_of(self.head_dim, self.table_alignment)
        caches = caches_of(self.dtype, self.num_kv_heads, self.block_size, self.head_dim, self.vector)
        return q, k, v, q_weight, k_weight, positions, *tables, *caches, slot_mapping

    @cute.jit
    def __call__(
        self,
        mQ: cute.Tensor,  # [T, Nq, D]
        mK: cute.Tensor,  # [T, Nkv, D]
        mV: cute.Tensor,  # [T, Nkv, D]
        mQWeight: cute.Tensor,  # [D]
        mKWeight: cute.Tensor,  # [D]
        mPositions: cute.Tensor,  # i32 [T]
        mCos: cute.Tensor,  # f32 [P, D/2]
        mSin: cute.Tensor,  # f32 [P, D/2]
        mKCache: cute.Tensor,  # [B, Nkv, bs, D]
        mVCache: cute.Tensor,  # [B, Nkv, bs, D]
        mSlots: cute.Tensor,  # i32 or i64 [T]
        stream: Any,
    ) -> None:
        threads = self.warps * WARP
        groups = mQ.shape[0] * (self.q_parts + 2 * self.kv_parts)
        self.kernel(mQ, mK, mV, mQWeight, mKWeight, mPositions, mCos, mSin, mKCache, mVCache, mSlots).launch(
            grid=[cute.ceil_div(groups, threads // self.lanes), 1, 1],
            block=[threads, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(
        self,
        mQ: cute.Tensor,
        mK: cute.Tensor,
        mV: cute.Tensor,
        mQWeight: cute.Tensor,
        mKWeight: cute.Tensor,
        mPositions: cute.Tensor,
        mCos: cute.Tensor,
        mSin: cute.Tensor,
        mKCache: cute.Tensor,
        mVCache: cute.Tensor,
        mSlots: cute.Tensor,
    ) -> None:
        begin_dependent(self.pdl)
        token, part, lane = place(self.warps, self.lanes, self.q_parts + 2 * self.kv_parts)
        is_token = token < mQ.shape[0]
        is_q, is_v = part < self.q_parts, part >= self.q_parts + self.kv_parts
        first_q, first_k = part * self.heads, (part - self.q_parts) * self.heads
        first_v = (part - self.q_parts - self.kv_parts) * self.heads

        # What other loads wait for goes first.
        position, slot = cutlass.Int32(0), cutlass.Int32(-1)
        if is_token:
            position, slot = mPositions[token], cutlass.Int32(mSlots[token])

        rX = cute.make_rmem_tensor((self.vector, self.vectors, self.heads), mQ.element_type)
        rWeight = cute.make_rmem_tensor((self.vector, self.vectors), mQWeight.element_type)
        rCos = cute.make_rmem_tensor((self.vector, self.vectors // 2), cutlass.Float32)
        rSin = cute.make_rmem_tensor((self.vector, self.vectors // 2), cutlass.Float32)
        for registers in (rX, rWeight, rCos, rSin):
            registers.fill(0)
        if is_token:
            if is_q:
                load_heads(mQ[token, None, None], rX, first_q, lane, self.lanes)
                load_head(mQWeight, rWeight, lane, self.lanes)
            elif is_v:
                load_heads(mV[token, None, None], rX, first_v, lane, self.lanes)
            else:
                load_heads(mK[token, None, None], rX, first_k, lane, self.lanes)
                load_head(mKWeight, rWeight, lane, self.lanes)
            if not is_v:
                load_head(mCos[position, None], rCos, lane, self.lanes)
                load_head(mSin[position, None], rSin, lane, self.lanes)

        # Heads of v go along, because a warp that holds them too must shuffle as one; their result is not used.
        rOut = cute.make_rmem_tensor((self.vector, self.vectors, self.heads), mQ.element_type)
        norm_heads(rX, rWeight, rOut, self.lanes, self.eps, self.weight_bias)
        turn_heads(rOut, rCos, rSin)

        if is_token:
            if is_q:
                store_heads(rOut, mQ[token, None, None], first_q, lane, self.lanes)
            elif slot >= 0:
                if is_v:
                    self.write(rX, mVCache, mSlots, token, slot, first_v, lane)
                else:
                    self.write(rOut, mKCache, mSlots, token, slot, first_k, lane)

    @cute.jit
    def write(
        self,
        rX: cute.Tensor,  # [vector, vectors, heads] in registers
        mCache: cute.Tensor,  # [B, Nkv, bs, D]
        mSlots: cute.Tensor,  # [T]
        token: cutlass.Int32,
        slot: cutlass.Int32,
        first: cutlass.Int32,  # the group's first head
        lane: cutlass.Int32,
    ) -> None:
        """One part of a token to its slot, and zeros behind it where the module's docstring says so."""
        number = cutlass.Int32(cutlass.Uint32(slot) // self.block_size)
        offset = cutlass.Int32(cutlass.Uint32(slot) % self.block_size)
        store_heads(rX, mCache[number, None, offset, None], first, lane, self.lanes)

        opener, successor = cutlass.Int32(-1), cutlass.Int32(-1)
        if token >= offset:
            opener = cutlass.Int32(mSlots[token - offset])
        if token + 1 < mSlots.shape[0]:
            successor = cutlass.Int32(mSlots[token + 1])
        if opener == slot - offset and successor != slot + 1:
            rX.fill(0)
            for row in range(offset + 1, self.block_size):
                store_heads(rX, mCache[number, None, row, None], first, lane, self.lanes)


@cute.jit
def turn_heads(
    rX: cute.Tensor,  # [vector, vectors, heads] in registers; the accesses of its second half are D/2 further
    rCos: cute.Tensor,  # f32 [vector, vectors / 2] in registers
    rSin: cute.Tensor,  # f32 [vector, vectors / 2] in registers
) -> None:
    """Each pair of channels by its angle, rounded once, in place."""
    vector, vectors, heads = rX.shape
    half = vectors // 2
    rFirst, rSecond = (cute.make_rmem_tensor((vector,), cutlass.Float32) for _ in range(2))
    for j in range_constexpr(heads):
        for i in range_constexpr(half):
            for e in range_constexpr(vector):
                first, second = rX[e, i, j].to(cutlass.Float32), rX[e, i + half, j].to(cutlass.Float32)
                rFirst[e] = turned_first(first, second, rCos[e, i], rSin[e, i])
                rSecond[e] = turned_second(first, second, rCos[e, i], rSin[e, i])
            rX[None, i, j].store(rFirst.load().to(rX.element_type))
            rX[None, i + half, j].store(rSecond.load().to(rX.element_type))


def qk_norm_rope_kv_write(
    q: Tensor,  # [T, Nq, D], a token's heads contiguous; overwritten
    k: Tensor,  # [T, Nkv, D], likewise, but kept
    v: Tensor,  # [T, Nkv, D]
    q_weight: Tensor,  # [D]
    k_weight: Tensor,  # [D]
    positions: Tensor,  # i32 [T], each in 0 .. P-1
    cos: Tensor,  # f32 [P, D/2]
    sin: Tensor,  # f32 [P, D/2]
    k_cache: Tensor,  # [B, Nkv, bs, D], a block contiguous; overwritten
    v_cache: Tensor,  # [B, Nkv, bs, D], likewise
    slot_mapping: Tensor,  # i32 or i64 [T]: block * bs + offset, or -1
    eps: float,
    *,
    weight_bias: float = 0.0,
    pdl: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # q, k_cache, v_cache
    """q as attention takes it, in place; k as attention takes it, and v, in the caches. k itself stays as it is.

    Precondition, which is not checked: the tokens of a sequence follow each other in the order of their slots, none
    left out, no slot is named twice, and slots are below 2^31. Otherwise slots that this call writes may become 0, or
    the rest of a block that it opens may stay as it was.

    pdl: programmatic dependent launch, see `dependent_launch`.
    Errors: TypeError for a cache of another dtype than q's; ValueError for an odd D; ValueError, TypeError for tensors
    that do not fit.
    """
    operation = "qk_norm_rope_kv_write"
    device = device_of(q)
    num_tokens, num_heads, head_dim = sizes_of(operation, "q", q, ("T", "Nq", "D"))
    dtype, weight_dtype, slot_dtype = dtype_of(q), dtype_of(q_weight), dtype_of(slot_mapping)
    _, num_kv_heads, block_size, _ = cache_sizes(operation, k_cache, v_cache, (dtype,))
    require(operation, "k", k, (num_tokens, num_kv_heads, head_dim), (dtype,))
    require(operation, "v", v, (num_tokens, num_kv_heads, head_dim), (dtype,))
    require(operation, "k_cache", k_cache, (*k_cache.shape[:3], head_dim), (dtype,))
    require(operation, "q_weight", q_weight, (head_dim,), FLOATS)
    require(operation, "k_weight", k_weight, (head_dim,), (weight_dtype,))
    require(operation, "positions", positions, (num_tokens,), INT32)
    require(operation, "slot_mapping", slot_mapping, (num_tokens,), ("int32", "int64"))
    require_tables(operation, cos, sin, head_dim)
    require_apart(operation, "q", q, num_heads * head_dim)
    if num_tokens == 0:
        return q, k_cache, v_cache
    vector = common_vector(device.arch, head_dim // 2, q, k, v, k_cache, v_cache, beside=(q_weight, k_weight))
    launch = head_launch(
        device.num_sms,
        num_tokens,
        (num_heads, num_kv_heads, num_kv_heads),
        head_dim=head_dim,
        itemsize=itemsize(dtype),
        vector=vector,
    )
    kernel = QkNormRopeKvWrite(
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        dtype,
        weight_dtype,
        slot_dtype,
        float(eps),
        float(weight_bias),
        table_alignment(device.arch, vector, cos, sin),
        **asdict(launch),
        pdl=bool(pdl),
    )
    device.run(kernel, q, k, v, q_weight, k_weight, positions, cos, sin, k_cache, v_cache, slot_mapping)
    return q, k_cache, v_cache

"""The router of a mixture of experts on a GPU: a warp a token, all of a token's logits in its registers.

The ids are exactly the reference's: experts are compared by integer keys that have the order of the logits, in which
-0 equals +0 and every NaN equals every other and comes last; among equals the lower id wins. Each of K rounds takes
the largest key of the warp, by the chip's reduction of integers.

Rounding: none after float32. The exponential is right to two units in the last place of float32.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import gcd
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.arguments import output, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.dependent_launch import begin_dependent
from optimized.kernels.rows import Vectorized, common_vector, itemsize, load_row, rows_of

MAX_EXPERTS = 512  # 16 a lane

# A float32 that was 16 bits wide ends in 13 zeros: such a key has room for the expert's id.
_ID_BITS = 0x1FFF
_KEY_OF_NAN = 0x10000  # below that of -infinity, above 0, which stands for no expert; as a float, NaN
_SIGN = 0x80000000  # also the key of zero

u32 = cutlass.Uint32


@dataclass(frozen=True)
class RouterTopK(Vectorized, Kernel):
    """Lane i of a row's warp ends with the i-th expert."""

    num_experts: int
    k: int
    dtype: str
    normalize: bool
    vector: int
    vectors: int
    warps: int
    pdl: bool = False

    @property
    def widest_store(self) -> int:
        return 4  # a lane's id, and its weight

    @property
    def holds_id(self) -> bool:
        """Does a key hold its expert's id, so that no two are equal?"""
        return itemsize(self.dtype) == 2

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        logits = rows_of(self.dtype, num_tokens, self.num_experts, self.vector)
        return logits, rows_of("int32", num_tokens, self.k, 1), rows_of("float32", num_tokens, self.k, 1)

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # [T, E]
        mIds: cute.Tensor,  # i32 [T, K]
        mWeights: cute.Tensor,  # f32 [T, K]
        stream: Any,
    ) -> None:
        self.kernel(mLogits, mIds, mWeights).launch(
            grid=[cute.ceil_div(mLogits.shape[0], self.warps), 1, 1],
            block=[self.warps * WARP, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(self, mLogits: cute.Tensor, mIds: cute.Tensor, mWeights: cute.Tensor) -> None:
        begin_dependent(self.pdl)
        block, _, _ = cute.arch.block_idx()
        lane = cute.arch.lane_idx()
        token = block * self.warps + cute.arch.warp_idx()
        is_token = token < mLogits.shape[0]
        rLogits = load_row(mLogits[token, None], lane, is_token, self.vector, self.vectors, WARP)
        rKeys = self.keys(rLogits, lane)

        key, chosen = u32(0), cutlass.Int32(0)  # this lane's expert
        largest = u32(0)
        for i in cutlass.range(self.k, unroll=1):  # unrolled, it is slow to compile, and no faster
            best, expert = self.take(rKeys, lane)
            if i == 0:
                largest = best
            if lane == i:
                key, chosen = best, expert

        # Lanes without an expert add nothing, whatever their key is.
        shift = self.value(largest)
        total = cutlass.Float32(0.0)
        for i in range_constexpr(self.vectors):
            for e in range_constexpr(self.vector):
                exponential = cute.math.exp(rLogits[e, i].to(cutlass.Float32) - shift)
                total += exponential if self.expert(e, i, lane) < self.num_experts else cutlass.Float32(0.0)
        total = cute.arch.warp_reduction(total, operator.add)
        weight = cute.math.exp(self.value(key) - shift) / total
        if const_expr(self.normalize):
            of_chosen = weight if lane < self.k else cutlass.Float32(0.0)
            weight = weight / cute.arch.warp_reduction(of_chosen, operator.add)
        if is_token and lane < self.k:
            mIds[token, lane] = chosen
            mWeights[token, lane] = weight

    def expert(self, element: int, access: int, lane: cutlass.Int32) -> cutlass.Int32:
        """The expert whose logit is at that place of a lane's registers; E or more where there is none."""
        return (access * WARP + lane) * self.vector + element

    @cute.jit
    def keys(self, rLogits: cute.Tensor, lane: cutlass.Int32) -> cute.Tensor:  # u32 [vector, vectors] in registers
        """Integers in the order of the logits; 0 where there is no expert."""
        rKeys = cute.make_rmem_tensor((self.vector, self.vectors), cutlass.Uint32)
        for i in range_constexpr(self.vectors):
            for e in range_constexpr(self.vector):
                bits = rLogits[e, i].to(cutlass.Float32).bitcast(cutlass.Uint32)
                magnitude = bits & u32(0x7FFFFFFF)
                key = ~bits if bits >= u32(_SIGN) else bits | u32(_SIGN)
                key = u32(_SIGN) if magnitude == u32(0) else key
                key = u32(_KEY_OF_NAN) if magnitude > u32(0x7F800000) else key
                expert = self.expert(e, i, lane)
                if const_expr(self.holds_id):
                    key = key & ~u32(_ID_BITS) | u32(_ID_BITS - expert)
                rKeys[e, i] = key if expert < self.num_experts else u32(0)
        return rKeys

    @cute.jit
    def take(self, rKeys: cute.Tensor, lane: cutlass.Int32) -> tuple[cutlass.Uint32, cutlass.Int32]:
        """The largest key of the warp and its expert, the lowest one where keys are equal; taken out of rKeys."""
        best = rKeys[0, 0]  # not u32(0): cutlass.max of a constant compares with a sign
        for i in range_constexpr(self.vectors):
            for e in range_constexpr(self.vector):
                best = cutlass.max(best, rKeys[e, i])
        best = cute.arch.warp_redux_sync(best, "max")
        expert = cutlass.Int32(0)
        if const_expr(self.holds_id):
            expert = _ID_BITS - cutlass.Int32(best & u32(_ID_BITS))
        else:
            expert = cutlass.Int32(MAX_EXPERTS)
            for i in range_constexpr(self.vectors):
                for e in range_constexpr(self.vector):
                    here = self.expert(e, i, lane)
                    expert = cutlass.min(expert, here) if rKeys[e, i] == best else expert
            expert = cute.arch.warp_redux_sync(expert, "min")
        for i in range_constexpr(self.vectors):
            for e in range_constexpr(self.vector):
                rKeys[e, i] = u32(0) if self.expert(e, i, lane) == expert else rKeys[e, i]
        return best, expert

    @cute.jit
    def value(self, key: cutlass.Uint32) -> cutlass.Float32:
        """The logit of a key."""
        bits = key ^ u32(_SIGN) if key >= u32(_SIGN) else ~key
        if const_expr(self.holds_id):
            bits = bits & ~u32(_ID_BITS)
        return bits.bitcast(cutlass.Float32)


def tokens_per_block(num_sms: int, num_tokens: int) -> int:
    """A warp each: few tokens (decode) spread over the multiprocessors, many come in blocks of 8."""
    return 1 if num_tokens <= num_sms else 8


def router_top_k(
    logits: Tensor,  # [T, E], rows contiguous
    k: int,
    *,
    normalize: bool,
    pdl: bool = False,
    out: tuple[Tensor, Tensor] | None = None,  # i32 [T, K], f32 [T, K]
) -> tuple[Tensor, Tensor]:  # i32 [T, K], f32 [T, K]: `out`, or new memory
    """The k likeliest experts of each token in falling order, and their weights.

    pdl: programmatic dependent launch, see `dependent_launch`.
    Errors: ValueError for more than MAX_EXPERTS experts, and for a k that is not in 1 .. min(E, 32); ValueError,
    TypeError for tensors that do not fit.
    """
    device = device_of(logits)
    num_tokens, num_experts = sizes_of("router_top_k", "logits", logits, ("T", "E"))
    k = operator.index(k)
    if num_experts > MAX_EXPERTS or not 1 <= k <= min(num_experts, WARP):
        raise ValueError(
            f"router_top_k: 1 to {WARP} of up to {MAX_EXPERTS} experts are chosen; k is {k}, of {num_experts} experts"
        )
    ids, weights = out or (None, None)
    ids = output("router_top_k", "out[0]", ids, device, (num_tokens, k), "int32")
    weights = output("router_top_k", "out[1]", weights, device, (num_tokens, k), "float32")
    if num_tokens == 0:
        return ids, weights
    dtype = dtype_of(logits)
    vector = common_vector(device.arch, num_experts, logits)
    vector = gcd(vector, max(1, num_experts // WARP))  # no wider than leaves every lane a share
    kernel = RouterTopK(
        num_experts,
        k,
        dtype,
        bool(normalize),
        vector,
        -(-num_experts // (WARP * vector)),
        tokens_per_block(device.num_sms, num_tokens),
        bool(pdl),
    )
    device.run(kernel, logits, ids, weights)
    return ids, weights

"""The combination of a mixture of experts on a GPU: a thread adds up its few elements of a token's K rows in registers.

All of a thread's loads are in flight before it adds. For few tokens (decode) a token is spread over blocks, since
nothing but latency counts; for many, a block has as many threads as a row has use for.

Rounding: that of the reference: float32, k ascending, one at the end. A product may be fused with its addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.arguments import FLOAT32, INT32, output, require, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.dependent_launch import begin_dependent
from optimized.kernels.rows import Vectorized, common_vector, rows_of

_MOST_THREADS = 256  # of a block
_BLOCKS_PER_SM = 4  # up to which a token is cut into smaller blocks


@dataclass(frozen=True)
class CombineLaunch:
    """Threads over a token's accesses, and over tokens."""

    threads_per_token: int  # in one block
    tokens_per_block: int
    blocks_per_token: int


def combine_launch(num_sms: int, num_tokens: int, row_accesses: int) -> CombineLaunch:
    """row_accesses: vectors of a row, each of which is one thread's."""
    threads = WARP
    while threads < _MOST_THREADS and num_tokens * -(-row_accesses // threads) > _BLOCKS_PER_SM * num_sms:
        threads *= 2
    blocks = -(-row_accesses // threads)
    # As many threads as there is work for, in whole warps, so that few idle at a row's end.
    threads = ceil(ceil(row_accesses / blocks) / WARP) * WARP
    is_spread = num_tokens * blocks <= _BLOCKS_PER_SM * num_sms
    return CombineLaunch(threads, 1 if is_spread else max(1, _MOST_THREADS // threads), blocks)


@dataclass(frozen=True)
class MoeCombine(Vectorized, Kernel):
    """y[t] = sum over k, ascending, of weights[t, k] * rows[row_of[t, k]]."""

    hidden_size: int
    experts_per_token: int
    dtype: str
    vector: int
    choice_vector: int  # elements of one access to a token's row numbers and weights
    threads_per_token: int
    tokens_per_block: int
    blocks_per_token: int
    pdl: bool = False

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        rows = rows_of(self.dtype, cute.sym_int(), self.hidden_size, self.vector)
        row_of, weights = (
            rows_of(dtype, num_tokens, self.experts_per_token, self.choice_vector) for dtype in ("int32", "float32")
        )
        return rows, row_of, weights, rows_of(self.dtype, num_tokens, self.hidden_size, self.vector)

    @cute.jit
    def __call__(
        self,
        mRows: cute.Tensor,  # [R, H]
        mRowOf: cute.Tensor,  # i32 [T, K]
        mWeights: cute.Tensor,  # f32 [T, K]
        mOut: cute.Tensor,  # [T, H]
        stream: Any,
    ) -> None:
        self.kernel(mRows, mRowOf, mWeights, mOut).launch(
            grid=[cute.ceil_div(mOut.shape[0], self.tokens_per_block), self.blocks_per_token, 1],
            block=[self.threads_per_token * self.tokens_per_block, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(self, mRows: cute.Tensor, mRowOf: cute.Tensor, mWeights: cute.Tensor, mOut: cute.Tensor) -> None:
        begin_dependent(self.pdl)
        thread, _, _ = cute.arch.thread_idx()
        block, part, _ = cute.arch.block_idx()
        token = block * self.tokens_per_block + thread // self.threads_per_token
        access = part * self.threads_per_token + thread % self.threads_per_token
        if token < mOut.shape[0] and access < self.hidden_size // self.vector:
            rRow = self.choices(mRowOf[token, None])
            rWeight = self.choices(mWeights[token, None])
            rX = cute.make_rmem_tensor((self.vector, self.experts_per_token), mRows.element_type)
            rX.fill(0)
            for k in range_constexpr(self.experts_per_token):
                if rRow[k] >= 0:
                    gRow = cute.zipped_divide(mRows[rRow[k], None], (self.vector,))
                    cute.autovec_copy(gRow[None, access], rX[None, k])
                else:
                    rWeight[k] = cutlass.Float32(0.0)
            rSum = cute.make_rmem_tensor(self.vector, cutlass.Float32)
            rSum.fill(0.0)
            for k in range_constexpr(self.experts_per_token):
                rSum.store(rSum.load() + rX[None, k].load().to(cutlass.Float32) * rWeight[k])
            rOut = cute.make_rmem_tensor(self.vector, mOut.element_type)
            rOut.store(rSum.load().to(mOut.element_type))
            cute.autovec_copy(rOut, cute.zipped_divide(mOut[token, None], (self.vector,))[None, access])

    @cute.jit
    def choices(
        self,
        mOfToken: cute.Tensor,  # [K]
    ) -> cute.Tensor:  # [K] in registers
        """What a token says of its rows, the same for all of its threads."""
        accesses = self.experts_per_token // self.choice_vector
        rOfToken = cute.make_rmem_tensor((self.choice_vector, accesses), mOfToken.element_type)
        gOfToken = cute.zipped_divide(mOfToken, (self.choice_vector,))
        for i in range_constexpr(accesses):
            cute.autovec_copy(gOfToken[None, i], rOfToken[None, i])
        return rOfToken


def moe_combine(
    rows: Tensor,  # [R, H], rows contiguous
    row_of: Tensor,  # i32 [T, K], rows contiguous
    weights: Tensor,  # f32 [T, K], rows contiguous
    *,
    pdl: bool = False,
    out: Tensor | None = None,  # [T, H]
) -> Tensor:  # [T, H], of rows' dtype: `out`, or new memory
    """Add up each token's rows, weighted. An unrouted (token, k) contributes 0, whatever its weight.

    pdl: programmatic dependent launch, see `dependent_launch`.
    Errors: ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(rows)
    _, hidden_size = sizes_of("moe_combine", "rows", rows, ("R", "H"))
    num_tokens, experts_per_token = sizes_of("moe_combine", "row_of", row_of, ("T", "K"), INT32)
    require("moe_combine", "weights", weights, row_of.shape, FLOAT32)
    dtype = dtype_of(rows)
    out = output("moe_combine", "out", out, device, (num_tokens, hidden_size), dtype)
    if num_tokens == 0:
        return out
    vector = common_vector(device.arch, hidden_size, rows, out)
    choice_vector = common_vector(device.arch, experts_per_token, row_of, weights)
    launch = combine_launch(device.num_sms, num_tokens, -(-hidden_size // vector))
    kernel = MoeCombine(
        hidden_size,
        experts_per_token,
        dtype,
        vector,
        choice_vector,
        launch.threads_per_token,
        launch.tokens_per_block,
        launch.blocks_per_token,
        bool(pdl),
    )
    device.run(kernel, rows, row_of, weights, out)
    return out

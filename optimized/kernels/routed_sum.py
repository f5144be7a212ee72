"""The weighted sum of each token's results of its experts on a GPU: the second launch of `routed_linear`."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.kernel import Kernel
from optimized.device import Device, Tensor, dtype_of
from optimized.kernels.rows import Vectorized, common_vector, rows_of

THREADS = 128
_WIDEST = 4  # columns of a thread: 16 bytes of float32


@dataclass(frozen=True)
class RoutedSum(Vectorized, Kernel):
    """out[t] = sum over k, ascending, of expert_weights[t, k] results[t, k], + residual[t]."""

    out_features: int
    experts_per_token: int
    num_experts: int
    dtype: str
    has_residual: bool
    vector: int
    pdl: bool

    @property
    def widest_access(self) -> int:
        return 4 * self.vector

    @property
    def widest_store(self) -> int:
        return 2 * self.vector

    def arguments(self) -> tuple[Any, ...]:
        num_tokens, per_token, length = cute.sym_int(), self.experts_per_token, self.out_features
        shape, strides = (num_tokens, per_token, length), (per_token * length, length, 1)
        results = make_fake_tensor(cutlass.Float32, shape, strides, assumed_align=4 * self.vector)
        ids, expert_weights = (rows_of(dtype, num_tokens, per_token, 1) for dtype in ("int32", "float32"))
        residual, out = (rows_of(self.dtype, num_tokens, length, self.vector) for _ in range(2))
        return results, ids, expert_weights, residual if self.has_residual else None, out

    @cute.jit
    def __call__(
        self,
        mResults: cute.Tensor,  # f32 [T, K, N]
        mIds: cute.Tensor,  # i32 [T, K]
        mExpertWeights: cute.Tensor,  # f32 [T, K]
        mResidual: Any,  # [T, N], or None
        mOut: cute.Tensor,  # [T, N]
        stream: Any,
    ) -> None:
        blocks = -(-self.out_features // (THREADS * self.vector))
        self.kernel(mResults, mIds, mExpertWeights, mResidual, mOut).launch(
            grid=[mOut.shape[0], blocks, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=self.pdl
        )

    @cute.kernel
    def kernel(
        self, mResults: cute.Tensor, mIds: cute.Tensor, mExpertWeights: cute.Tensor, mResidual: Any, mOut: cute.Tensor
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        token, block, _ = cute.arch.block_idx()
        if const_expr(self.pdl):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        access = block * THREADS + thread
        if access < self.out_features // self.vector:
            per_token = self.experts_per_token
            rX = cute.make_rmem_tensor((self.vector, per_token), cutlass.Float32)
            rX.fill(0.0)
            rIs_here = cute.make_rmem_tensor((per_token,), cutlass.Int32)
            for k in range_constexpr(per_token):
                expert = mIds[token, k]
                rIs_here[k] = cutlass.Int32((expert >= 0) & (expert < self.num_experts))
                if rIs_here[k] != 0:
                    cute.autovec_copy(self.columns(mResults[token, k, None], access), rX[None, k])
            rSum = cute.make_rmem_tensor((self.vector,), cutlass.Float32)
            rSum.fill(0.0)
            for k in range_constexpr(per_token):
                if rIs_here[k] != 0:
                    factor = mExpertWeights[token, k]
                    for i in range_constexpr(self.vector):
                        rSum[i] = cute.math.fma(factor, rX[i, k], rSum[i])
            if const_expr(self.has_residual):
                rResidual = cute.make_rmem_tensor((self.vector,), mOut.element_type)
                cute.autovec_copy(self.columns(mResidual[token, None], access), rResidual)
                rSum.store(rSum.load() + rResidual.load().to(cutlass.Float32))
            rOut = cute.make_rmem_tensor((self.vector,), mOut.element_type)
            rOut.store(rSum.load().to(mOut.element_type))
            cute.autovec_copy(rOut, self.columns(mOut[token, None], access))

    def columns(self, mRow: cute.Tensor, access: cutlass.Int32) -> cute.Tensor:
        return cute.zipped_divide(mRow, (self.vector,))[None, access]


def routed_sum(
    device: Device,
    results: Tensor,  # f32 [T, K, N], contiguous
    expert_ids: Tensor,  # i32 [T, K]
    expert_weights: Tensor,  # f32 [T, K]
    residual: Tensor | None,  # [T, N]
    out: Tensor,  # [T, N]
    num_experts: int,
    *,
    pdl: bool,
) -> None:
    """out[t] = sum over k, ascending, of expert_weights[t, k] results[t, k], + residual[t]; an id that is negative, or
    not below `num_experts`, adds nothing. Summed in float32, rounded once. All has been checked."""
    _, per_token, length = results.shape
    rows = (out,) if residual is None else (out, residual)
    vector = gcd(_WIDEST, common_vector(device.arch, length, *rows))
    kernel = RoutedSum(length, per_token, num_experts, dtype_of(out), residual is not None, vector, bool(pdl))
    device.run(kernel, results, expert_ids, expert_weights, residual, out)

"""Residual sum and RMSNorm of it on a GPU, in one pass over memory: both rows are read once, both results written once.

Rounding: that of the reference, two. The sum is rounded to the model's dtype, and it is the ROUNDED sum, still in
registers, that is normalised. The mean of squares is added up in another order, in float32.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.arguments import FLOATS, output, require, require_two, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import row_launch
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.dependent_launch import begin_dependent
from optimized.kernels.rms_norm import norm_row
from optimized.kernels.rows import (
    Vectorized,
    common_vector,
    load_row,
    rows_of,
    store_row,
    vector_of,
)


@dataclass(frozen=True)
class AddRmsNorm(Vectorized, Kernel):
    """sum = x + residual; normed = sum / sqrt(mean(sum^2) + eps) * (weight + weight_bias), row by row."""

    hidden_size: int
    dtype: str
    weight_dtype: str
    eps: float
    weight_bias: float
    vector: int
    vectors: int
    threads_per_row: int
    rows_per_block: int
    pdl: bool = False

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        x, residual, normed, total = (rows_of(self.dtype, num_rows, self.hidden_size, self.vector) for _ in range(4))
        return x, residual, vector_of(self.weight_dtype, self.hidden_size, self.vector), normed, total

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mResidual: cute.Tensor,  # [T, H]
        mWeight: cute.Tensor,  # [H]
        mNormed: cute.Tensor,  # [T, H]
        mSum: cute.Tensor,  # [T, H]
        stream: Any,
    ) -> None:
        self.kernel(mX, mResidual, mWeight, mNormed, mSum).launch(
            grid=[cute.ceil_div(mX.shape[0], self.rows_per_block), 1, 1],
            block=[self.threads_per_row * self.rows_per_block, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mResidual: cute.Tensor,
        mWeight: cute.Tensor,
        mNormed: cute.Tensor,
        mSum: cute.Tensor,
    ) -> None:
        begin_dependent(self.pdl)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.rows_per_block + thread // self.threads_per_row
        lane = thread % self.threads_per_row
        is_row = row < mX.shape[0]
        part = (self.vector, self.vectors, self.threads_per_row)

        rSum = load_row(mX[row, None], lane, is_row, *part)
        rResidual = load_row(mResidual[row, None], lane, is_row, *part)
        rWeight = load_row(mWeight, lane, is_row, *part)
        exact = rSum.load().to(cutlass.Float32) + rResidual.load().to(cutlass.Float32)
        rSum.store(exact.to(mSum.element_type))
        store_row(rSum, mSum[row, None], lane, is_row, self.threads_per_row)

        norm_row(rSum, rWeight, self)
        store_row(rSum, mNormed[row, None], lane, is_row, self.threads_per_row)


def add_rms_norm(
    x: Tensor,  # [T, H], what a layer adds; rows contiguous
    residual: Tensor,  # [T, H], what it adds to; rows contiguous
    weight: Tensor,  # [H]
    eps: float,
    *,
    weight_bias: float = 0.0,
    pdl: bool = False,
    out: tuple[Tensor, Tensor] | None = None,  # [T, H] each; either may be x or residual itself
) -> tuple[Tensor, Tensor]:  # (normed [T, H], new residual [T, H]), x's dtype: `out`, or new memory
    """Add x to the residual stream, round the sum, normalise the rounded sum.

    Either of out may be x or residual itself, for a thread reads its part of both rows before it writes; but not both
    the same one. pdl: programmatic dependent launch, see `dependent_launch`.
    Errors: ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(x)
    shape = num_rows, hidden_size = sizes_of("add_rms_norm", "x", x, ("T", "H"))
    dtype = dtype_of(x)
    require("add_rms_norm", "residual", residual, shape, (dtype,))
    require("add_rms_norm", "weight", weight, (hidden_size,), FLOATS)
    normed, new_residual = out or (None, None)
    normed = output("add_rms_norm", "out[0]", normed, device, shape, dtype)
    new_residual = output("add_rms_norm", "out[1]", new_residual, device, shape, dtype)
    require_two("add_rms_norm", "out[0]", normed, "out[1]", new_residual)
    if num_rows == 0:
        return normed, new_residual
    rows = (x, residual, normed, new_residual)
    vector = common_vector(device.arch, hidden_size, *rows, beside=(weight,))
    launch = row_launch(device.num_sms, num_rows, length=hidden_size, vector=vector)
    kernel = AddRmsNorm(
        hidden_size,
        dtype,
        dtype_of(weight),
        float(eps),
        float(weight_bias),
        **asdict(launch),
        pdl=bool(pdl),
    )
    device.run(kernel, x, residual, weight, normed, new_residual)
    return normed, new_residual

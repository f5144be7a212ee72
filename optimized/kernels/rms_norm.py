"""RMSNorm on a GPU: each row in the registers of a few threads, read once and written once.

Rounding: that of the reference, one at the end. The mean of squares is added up in another order, in float32.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.arguments import FLOATS, output, require, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import row_launch
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.dependent_launch import begin_dependent
from optimized.kernels.rows import (
    Vectorized,
    common_vector,
    load_row,
    rows_of,
    store_row,
    sum_of_row,
    vector_of,
)


@dataclass(frozen=True)
class RmsNorm(Vectorized, Kernel):
    """normed = x / sqrt(mean(x^2) + eps) * (weight + weight_bias), row by row."""

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
        x, out = (rows_of(self.dtype, num_rows, self.hidden_size, self.vector) for _ in range(2))
        return x, vector_of(self.weight_dtype, self.hidden_size, self.vector), out

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mWeight: cute.Tensor,  # [H]
        mOut: cute.Tensor,  # [T, H]
        stream: Any,
    ) -> None:
        self.kernel(mX, mWeight, mOut).launch(
            grid=[cute.ceil_div(mX.shape[0], self.rows_per_block), 1, 1],
            block=[self.threads_per_row * self.rows_per_block, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mWeight: cute.Tensor, mOut: cute.Tensor) -> None:
        begin_dependent(self.pdl)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.rows_per_block + thread // self.threads_per_row
        lane = thread % self.threads_per_row
        is_row = row < mX.shape[0]
        part = (self.vector, self.vectors, self.threads_per_row)

        rX = load_row(mX[row, None], lane, is_row, *part)
        rWeight = load_row(mWeight, lane, is_row, *part)
        norm_row(rX, rWeight, self)
        store_row(rX, mOut[row, None], lane, is_row, self.threads_per_row)


@cute.jit
def norm_row(
    rX: cute.Tensor,  # [vector, vectors] in registers
    rWeight: cute.Tensor,  # [vector, vectors] in registers
    norm: cutlass.Constexpr,  # the kernel, whose constants are those of `RmsNorm`
) -> None:
    """A thread's part of a row, normalised in place. Every thread of the block must call it."""
    x = rX.load().to(cutlass.Float32)
    squares = (x * x).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
    mean_square = sum_of_row(squares, norm.threads_per_row, norm.rows_per_block) / norm.hidden_size
    scale = 1.0 / cute.math.sqrt(mean_square + norm.eps)
    weight = rWeight.load().to(cutlass.Float32) + norm.weight_bias
    rX.store((x * scale * weight).to(rX.element_type))


def rms_norm(
    x: Tensor,  # [T, H], rows contiguous
    weight: Tensor,  # [H]
    eps: float,
    *,
    weight_bias: float = 0.0,
    pdl: bool = False,
    out: Tensor | None = None,  # [T, H]
) -> Tensor:  # [T, H], x's dtype: `out`, or new memory
    """Normalise each row of x to a root mean square of 1, then scale its channels. out may be x.

    pdl: programmatic dependent launch, see `dependent_launch`.
    Errors: ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(x)
    num_rows, hidden_size = sizes_of("rms_norm", "x", x, ("T", "H"))
    require("rms_norm", "weight", weight, (hidden_size,), FLOATS)
    dtype = dtype_of(x)
    out = output("rms_norm", "out", out, device, (num_rows, hidden_size), dtype)
    if num_rows == 0:
        return out
    vector = common_vector(device.arch, hidden_size, x, out, beside=(weight,))
    launch = row_launch(device.num_sms, num_rows, length=hidden_size, vector=vector)
    kernel = RmsNorm(
        hidden_size,
        dtype,
        dtype_of(weight),
        float(eps),
        float(weight_bias),
        **asdict(launch),
        pdl=bool(pdl),
    )
    device.run(kernel, x, weight, out)
    return out

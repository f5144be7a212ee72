"""Linear projections on a GPU, x W^T + bias + residual: for few rows here, see `few_rows` for the product.

Rounding: that of the reference, one at the end, and one of x times the norm's weight where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.arguments import FLOATS, output, require, require_unread
from optimized.device import Device, Tensor, device_of, dtype_of, libraries_take
from optimized.kernels.few_rows_dense import DenseFewRows, dense_constants, dense_sizes, quack_takes
from optimized.kernels.few_rows_launch import FEW_ROWS
from optimized.kernels.linear_many_rows import linear_many_rows
from optimized.kernels.rows import vector_of


@dataclass(frozen=True)
class Linear(DenseFewRows):
    """out = x W^T (+ bias) (+ residual)."""

    bias_dtype: str  # "": there is none
    has_residual: bool

    @property
    def beside_words(self) -> int:
        return (self.bias_dtype != "") + self.has_residual

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        bias = vector_of(self.bias_dtype, self.out_features) if self.bias_dtype else None
        residual = self.fake_out(num_rows) if self.has_residual else None
        return *self.fake_inputs(num_rows), bias, residual, self.fake_out(num_rows)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, K]
        mWeight: cute.Tensor,  # [N, K]
        mNormWeight: Any,  # [K], or None, as the two that follow
        mBias: Any,  # [N]
        mResidual: Any,  # [T, N]
        mOut: cute.Tensor,  # [T, N]
        stream: Any,
    ) -> None:
        operands = mX, mWeight, mNormWeight, mBias, mResidual, mOut
        self.launch(operands, self.grid(mX.shape[0]), stream)

    @cute.jit
    def load_beside(self, operands: Any, rUnit: cute.Tensor, m: Any, n: Any, rBeside: cute.Tensor) -> None:
        if const_expr(self.bias_dtype != ""):
            rBeside[0] = operands[3][n].to(cutlass.Float32)
        if const_expr(self.has_residual):
            rBeside[self.beside_words - 1] = operands[4][rUnit[2] + m, n].to(cutlass.Float32)

    @cute.jit
    def write(self, operands: Any, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any) -> None:
        total = rSum[0]
        for word in range_constexpr(self.beside_words):
            total += rBeside[word]
        operands[5][rUnit[2] + m, n] = total.to(operands[5].element_type)


def linear(
    x: Tensor,  # [T, K], rows contiguous
    weight: Tensor,  # [N, K], rows contiguous
    bias: Tensor | None = None,  # [N]
    residual: Tensor | None = None,  # [T, N], rows contiguous
    *,
    norm_weight: Tensor | None = None,  # [K]
    eps: float = 0.0,
    weight_bias: float = 0.0,
    invariant: bool = False,
    pdl: bool = False,
    out: Tensor | None = None,  # [T, N]
) -> Tensor:  # [T, N], x's dtype: `out`, or new memory
    """Project every row: x W^T + bias + residual, of bfloat16 or float16. With a norm weight (bfloat16, up to 64 rows)
    x is normalised first, as the reference says; eps and weight_bias are the norm's. out may be the residual, and must
    not reach into anything else.

    invariant: a row's bits do not depend on what other rows there are, nor on how many. Up to 32 rows they never do;
    more are left to `linear_many_rows` otherwise, unless they are to be normalised, or lie where it cannot take them.
    pdl: programmatic dependent launch, see `few_rows`; of no effect where that does not run. The launch before this one
    must then write neither weight nor norm_weight.
    Errors: ValueError, TypeError for tensors that do not fit; ValueError for eps or weight_bias without norm_weight,
    and for more than 64 rows with it.
    """
    device = device_of(x)
    num_rows, _, out_features = dense_sizes("linear", x, weight, "N")
    dtype = dtype_of(x)
    if bias is not None:
        require("linear", "bias", bias, (out_features,), FLOATS)
    if residual is not None:
        require("linear", "residual", residual, (num_rows, out_features), (dtype,))
    out = output("linear", "out", out, device, (num_rows, out_features), dtype)
    require_unread("linear", "out", out, x=x, weight=weight)
    if num_rows == 0:
        return out
    if num_rows > FEW_ROWS and not invariant and norm_weight is None:
        given = (one for one in (x, weight, bias, residual, out) if one is not None)
        if libraries_take(x) or quack_takes(*given):
            return linear_many_rows(x, weight, bias, residual, out=out)
    norm = {"eps": eps, "weight_bias": weight_bias}
    kernel = linear_kernel(device, x, weight, norm_weight, bias, residual, **norm, pdl=pdl)
    device.run(kernel, x, weight, norm_weight, bias, residual, out)
    return out


def linear_kernel(
    device: Device,
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = 0.0,
    weight_bias: float = 0.0,
    pdl: bool = False,
) -> Linear:
    """What `linear` launches for few rows, whose operands these are, the output behind them."""
    constants = dense_constants("linear", device, x, weight, norm_weight, eps=eps, weight_bias=weight_bias, pdl=pdl)
    bias_dtype = "" if bias is None else dtype_of(bias)
    return Linear(**constants, bias_dtype=bias_dtype, has_residual=residual is not None)

"""Gate and up projections and the gated activation of an MLP in one kernel on a GPU: for few rows here, see `few_rows`.

Rounding: that of the reference, one at the end, and one of x times the norm's weight where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import cute

from optimized.arguments import output, require_unread
from optimized.device import Device, Tensor, device_of, dtype_of
from optimized.kernels.activation import activated, half_of, require_activation
from optimized.kernels.few_rows_dense import DenseFewRows, dense_constants, dense_sizes, quack_takes
from optimized.kernels.few_rows_launch import FEW_ROWS
from optimized.kernels.linear_many_rows import linear_many_rows


@dataclass(frozen=True)
class GatedLinear(DenseFewRows):
    """out = act(x Wg^T) * (x Wu^T)."""

    kind: str

    parts = 2

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        return *self.fake_inputs(num_rows), self.fake_out(num_rows)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, K]
        mWeight: cute.Tensor,  # [2 I, K]
        mNormWeight: Any,  # [K], or None
        mOut: cute.Tensor,  # [T, I]
        stream: Any,
    ) -> None:
        self.launch((mX, mWeight, mNormWeight, mOut), self.grid(mX.shape[0]), stream)

    @cute.jit
    def write(self, operands: Any, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any) -> None:
        gate = activated(rSum[0], self.kind, self.dtype)
        operands[3][rUnit[2] + m, n] = (gate * rSum[1]).to(operands[3].element_type)


def gated_linear(
    x: Tensor,  # [T, K], rows contiguous
    weight: Tensor,  # [2 I, K], rows contiguous, gate above up
    *,
    kind: str,  # one of reference.model.config.ACTIVATIONS
    norm_weight: Tensor | None = None,  # [K]
    eps: float = 0.0,
    weight_bias: float = 0.0,
    invariant: bool = False,
    pdl: bool = False,
    out: Tensor | None = None,  # [T, I]
) -> Tensor:  # [T, I], x's dtype: `out`, or new memory
    """act(x Wg^T) * (x Wu^T), of bfloat16 or float16. Norm, invariant, pdl and errors: see `linear`; ValueError for an
    activation that is not known, and for an odd number of rows of the weight too."""
    require_activation("gated_linear", kind)
    device = device_of(x)
    num_rows, _, weight_rows = dense_sizes("gated_linear", x, weight, "2 I")
    size = half_of("gated_linear", "weight", weight_rows, "rows")
    out = output("gated_linear", "out", out, device, (num_rows, size), dtype_of(x))
    require_unread("gated_linear", "out", out, x=x, weight=weight)
    if num_rows == 0:
        return out
    is_for_many = num_rows > FEW_ROWS and not invariant and norm_weight is None and kind == "silu"
    if is_for_many and quack_takes(x, weight, out):
        return linear_many_rows(x, weight, activation=kind, out=out)
    kernel = gated_linear_kernel(device, x, weight, norm_weight, kind=kind, eps=eps, weight_bias=weight_bias, pdl=pdl)
    device.run(kernel, x, weight, norm_weight, out)
    return out


def gated_linear_kernel(
    device: Device,
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None = None,
    *,
    kind: str,
    eps: float = 0.0,
    weight_bias: float = 0.0,
    pdl: bool = False,
) -> GatedLinear:
    """What `gated_linear` launches for few rows, whose operands these are, the output behind them."""
    constants = dense_constants(
        "gated_linear", device, x, weight, norm_weight, parts=2, eps=eps, weight_bias=weight_bias, pdl=pdl
    )
    return GatedLinear(**constants, kind=kind)

"""The product of a mixture of experts on a GPU, for few rows: each expert's rows with that expert's weight.

Rounding: that of the reference, one at the end. See `few_rows` for the product, `few_rows_grouped` for the experts.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.arguments import HALVES, INT32, output, require, require_unread, sizes_of
from optimized.device import Device, Tensor, device_of, dtype_of
from optimized.kernels.few_rows_grouped import GroupedFewRows, GroupedOperands
from optimized.kernels.few_rows_grouped_launch import grouped_launch
from optimized.kernels.few_rows_grouped_list import shared_chunks, shared_words
from optimized.kernels.few_rows_launch import WARPS, access_of, strides_of
from optimized.kernels.rows import vector_of


@dataclass(frozen=True)
class GroupedLinear(GroupedFewRows):
    """out[row] = x[row] W[e]^T for the rows of each expert e."""

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        offsets = vector_of("int32", self.num_experts + 1)
        return self.fake_x(num_rows), self.fake_weight(), offsets, self.fake_out(num_rows)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [R, K]
        mWeight: cute.Tensor,  # [E, N, K]
        mOffsets: cute.Tensor,  # i32 [E + 1]
        mOut: cute.Tensor,  # [R, N]
        stream: Any,
    ) -> None:
        self.launch((mX, mWeight, mOffsets, mOut), self.grid(mX.shape[0]), stream)

    def beside_ring(self, operands: tuple[Any, ...]) -> GroupedOperands:
        mX, mWeight, mOffsets, mOut = operands
        sChunks, sTotals = shared_chunks(2 * self.num_experts), shared_words(WARPS)
        return GroupedOperands(mX, mWeight, mOffsets, mOut, sChunks, sTotals, None, None)

    def x_address(self, operands: GroupedOperands, row: cutlass.Int32) -> cutlass.Int64:
        return self.row_address(operands, row)

    @cute.jit
    def write(
        self, operands: GroupedOperands, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any
    ) -> None:
        operands.mOut[rUnit[3] + m, n] = rSum[0].to(operands.mOut.element_type)


def grouped_linear(
    x: Tensor,  # [R, K], rows contiguous
    weight: Tensor,  # [E, N, K], rows contiguous
    expert_offsets: Tensor,  # i32 [E + 1], see `moe_dispatch`
    *,
    pdl: bool = False,
    out: Tensor | None = None,  # [R, N]
) -> Tensor:  # [R, N], x's dtype: `out`, or new memory
    """out[row] = x[row] W[e]^T for rows expert_offsets[e] .. expert_offsets[e + 1] - 1 of each expert e, of bfloat16 or
    float16. Padding within them is a row like any other; rows beyond the last expert are neither read nor written.

    The fewer rows of padding, the better: a dispatch with tile 1 has none.
    pdl: programmatic dependent launch; expert_offsets must then be there when the launch before this one lets it begin
    (`few_rows_grouped`).
    Errors: ValueError, TypeError for tensors that do not fit; ValueError for more rows than there is a kernel for.
    """
    device = device_of(x)
    num_rows, _, out_features = grouped_sizes("grouped_linear", x, weight, expert_offsets)
    out = output("grouped_linear", "out", out, device, (num_rows, out_features), dtype_of(x))
    require_unread("grouped_linear", "out", out, x=x, weight=weight)
    if num_rows == 0:
        return out
    device.run(grouped_linear_kernel(device, x, weight, pdl=pdl), x, weight, expert_offsets, out)
    return out


def grouped_linear_kernel(device: Device, x: Tensor, weight: Tensor, *, pdl: bool = False) -> GroupedLinear:
    """What `grouped_linear` launches, whose operands these are."""
    return GroupedLinear(*grouped_constants(device, x, weight, x.shape[0], pdl=pdl))


def grouped_sizes(operation: str, x: Tensor, weight: Tensor, expert_offsets: Tensor) -> tuple[int, int, int]:
    """Rows of x, experts, and rows of a weight. Errors: ValueError, TypeError for tensors that do not fit."""
    num_rows, in_features = sizes_of(operation, "x", x, ("R", "K"), HALVES)
    num_experts, features, _ = sizes_of(operation, "weight", weight, ("E", "N", "K"), HALVES)
    require(operation, "weight", weight, (num_experts, features, in_features), (dtype_of(x),))
    require(operation, "expert_offsets", expert_offsets, (num_experts + 1,), INT32)
    return num_rows, num_experts, features


def grouped_constants(
    device: Device, x: Tensor, weight: Tensor, num_rows: int, *, parts: int = 1, gathers: bool = False, pdl: bool
) -> tuple[Any, ...]:
    """Of a `GroupedFewRows`, in order, whose inputs are checked. num_rows: of all experts."""
    num_experts, features, in_features = weight.shape
    expert_stride, weight_stride = strides_of(weight)
    out_features = features // parts
    sizes = device.arch, device.num_sms, num_rows, num_experts, out_features
    launch = grouped_launch(*sizes, parts=parts, gathers=gathers)
    shape = in_features, out_features, dtype_of(x), weight_stride, access_of(weight), access_of(x)
    return *shape, *astuple(launch), bool(pdl), num_experts, expert_stride

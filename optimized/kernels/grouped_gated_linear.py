"""Gate and up of a mixture of experts on a GPU, for few rows: each expert's tokens with its two weights, and the gated
activation of both products. Tokens are found by their number, and copied nowhere but to shared memory.

Rounding: that of the reference, one at the end. See `few_rows` for the product, `few_rows_grouped` for the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.arguments import INT32, output, require_unread, sizes_of
from optimized.device import Device, Tensor, device_of, dtype_of
from optimized.kernels.activation import activated, half_of, require_activation
from optimized.kernels.few_rows_grouped import GroupedFewRows, GroupedOperands
from optimized.kernels.few_rows_grouped_list import TOKENS_HELD, hold_tokens, shared_chunks, shared_words, token_of
from optimized.kernels.few_rows_launch import WARPS
from optimized.kernels.grouped_linear import grouped_constants, grouped_sizes
from optimized.kernels.rows import vector_of


@dataclass(frozen=True)
class GroupedGatedLinear(GroupedFewRows):
    """out[row] = act(x[token] Wg[e]^T) * (x[token] Wu[e]^T) for the rows of each expert e."""

    kind: str  # of the activation

    parts = 2
    begins_early = False

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        offsets, tokens = vector_of("int32", self.num_experts + 1), vector_of("int32", num_rows)
        return self.fake_x(cute.sym_int()), self.fake_weight(), offsets, tokens, self.fake_out(num_rows)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mWeight: cute.Tensor,  # [E, 2 I, H]
        mOffsets: cute.Tensor,  # i32 [E + 1]
        mTokens: cute.Tensor,  # i32 [R]
        mOut: cute.Tensor,  # [R, I]
        stream: Any,
    ) -> None:
        self.launch((mX, mWeight, mOffsets, mTokens, mOut), self.grid(mTokens.shape[0]), stream)

    def beside_ring(self, operands: tuple[Any, ...]) -> GroupedOperands:
        mX, mWeight, mOffsets, mTokens, mOut = operands
        sChunks, sTotals, sTokens = shared_chunks(2 * self.num_experts), shared_words(WARPS), shared_words(TOKENS_HELD)
        return GroupedOperands(mX, mWeight, mOffsets, mOut, sChunks, sTotals, sTokens, mTokens)

    def prepare(self, operands: GroupedOperands) -> None:
        hold_tokens(operands.mTokens, operands.sTokens, self.threads)

    def x_address(self, operands: GroupedOperands, row: cutlass.Int32) -> cutlass.Int64:
        """Of padding any, since nobody sees its result."""
        return self.row_address(operands, cutlass.max(token_of(operands.mTokens, operands.sTokens, row), 0))

    @cute.jit
    def write(
        self, operands: GroupedOperands, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any
    ) -> None:
        row = rUnit[3] + m
        if token_of(operands.mTokens, operands.sTokens, row) >= 0:
            gate = activated(rSum[0], self.kind, self.dtype)
            operands.mOut[row, n] = (gate * rSum[1]).to(operands.mOut.element_type)


def grouped_gated_linear(
    x: Tensor,  # [T, H], rows contiguous
    weight: Tensor,  # [E, 2 I, H], rows contiguous: gate above up
    expert_offsets: Tensor,  # i32 [E + 1], see `moe_dispatch`
    src_token: Tensor,  # i32 [R]
    *,
    kind: str,  # of the activation, one of reference.model.config.ACTIVATIONS
    pdl: bool = False,
    out: Tensor | None = None,  # [R, I]
) -> Tensor:  # [R, I], x's dtype: `out`, or new memory
    """out[row] = act(x[t] Wg[e]^T) * (x[t] Wu[e]^T), t = src_token[row], for the rows expert_offsets[e] ..
    expert_offsets[e + 1] - 1 of each expert e, of bfloat16 or float16. Padding (t = -1) and rows beyond the last expert
    are not written.

    The fewer rows of padding, the better: a dispatch with tile 1 has none.
    pdl: programmatic dependent launch; what the launch before this one wrote is then there for the launch after it from
    its very beginning (`few_rows_grouped`).
    Errors: ValueError for an activation that is not known, and an odd number of rows of a weight; ValueError, TypeError
    for tensors that do not fit; ValueError for more rows than there is a kernel for.
    """
    device = device_of(x)
    num_tokens, _, features = grouped_sizes("grouped_gated_linear", x, weight, expert_offsets)
    (num_rows,) = sizes_of("grouped_gated_linear", "src_token", src_token, ("R",), INT32)
    size = half_of("grouped_gated_linear", "weight", features, "rows an expert")
    require_activation("grouped_gated_linear", kind)
    out = output("grouped_gated_linear", "out", out, device, (num_rows, size), dtype_of(x))
    require_unread("grouped_gated_linear", "out", out, x=x, weight=weight)
    if num_tokens == 0 or num_rows == 0:
        return out
    kernel = grouped_gated_linear_kernel(device, x, weight, src_token, kind=kind, pdl=pdl)
    device.run(kernel, x, weight, expert_offsets, src_token, out)
    return out


def grouped_gated_linear_kernel(
    device: Device, x: Tensor, weight: Tensor, src_token: Tensor, *, kind: str, pdl: bool = False
) -> GroupedGatedLinear:
    """What `grouped_gated_linear` launches, whose operands these are."""
    constants = *grouped_constants(device, x, weight, src_token.shape[0], parts=2, gathers=True, pdl=pdl), kind
    return GroupedGatedLinear(*constants)

"""Down projections of a mixture of experts on a GPU, for few tokens: each pair's row with its expert's weight, and the
weighted sum of each token's. The router's choice is all that is needed beside the rows: there is no dispatch.

A token alone is one launch: a block computes some columns of all its experts' results, one expert after another, and
adds them up. Several tokens share experts, and so are two: the results of all pairs, in float32, then their sums
(`routed_sum`). Both add the same numbers in the same order: a token has the same bits alone and in any company.

Rounding: that of the reference, one at the end. See `few_rows` for the product, `few_rows_routed` for the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.arguments import FLOAT32, HALVES, INT32, output, require, require_unread, sizes_of
from optimized.device import Device, Tensor, device_of, dtype_of
from optimized.kernels.few_rows_launch import tiles_of
from optimized.kernels.few_rows_routed import RoutedFewRows, RoutedOperands
from optimized.kernels.few_rows_routed_launch import require_few_pairs, routed_constants
from optimized.kernels.routed_linear_alone import RoutedLinearAlone
from optimized.kernels.routed_sum import routed_sum
from optimized.kernels.rows import rows_of


@dataclass(frozen=True)
class RoutedLinear(RoutedFewRows):
    """out[t, k] = x[t, k] W[e]^T, e = expert_ids[t, k], in float32."""

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        ids = rows_of("int32", num_tokens, self.experts_per_token, 1)
        x = self.fake_pairs(self.dtype, num_tokens, self.in_features, self.x_access)
        return x, self.fake_weight(), ids, self.fake_pairs("float32", num_tokens, self.out_features, 4)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, K, I]
        mWeight: cute.Tensor,  # [E, N, I]
        mIds: cute.Tensor,  # i32 [T, K]
        mOut: cute.Tensor,  # f32 [T, K, N]
        stream: Any,
    ) -> None:
        self.launch((mX, mWeight, mIds, mOut), self.grid(mX.shape[0] * self.experts_per_token), stream)

    def x_address(self, operands: RoutedOperands, row: cutlass.Int32) -> cutlass.Int64:
        return self.pair_address(operands.mX, *self.place_of_row(operands, row))

    @cute.jit
    def write(
        self, operands: RoutedOperands, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any
    ) -> None:
        token, k = self.place_of_row(operands, rUnit[3] + m)
        operands.mOut[token, k, n] = rSum[0]


def routed_linear(
    x: Tensor,  # [T, K, I], rows contiguous
    weight: Tensor,  # [E, N, I], rows contiguous
    expert_ids: Tensor,  # i32 [T, K], rows contiguous
    expert_weights: Tensor,  # f32 [T, K], rows contiguous
    residual: Tensor | None = None,  # [T, N], rows contiguous
    *,
    experts_of_all: int | None = None,
    pdl: bool = False,
    out: Tensor | None = None,  # [T, N]
) -> Tensor:  # [T, N], x's dtype: `out`, or new memory
    """out[t] = sum over k, ascending, of expert_weights[t, k] (x[t, k] W[e]^T), + residual[t], e = expert_ids[t, k], of
    bfloat16 or float16. An id that is negative, or not below E, has no weight here, and adds nothing. out may be the
    residual.

    experts_of_all: of which the router chooses, if these are some of them; for speed alone.
    pdl: programmatic dependent launch; expert_ids and expert_weights must then be there when the launch before this one
    lets it begin (`few_rows_routed`).
    Errors: ValueError for more than MOST_PAIRS pairs of tokens and experts; ValueError, TypeError for tensors that do
    not fit.
    """
    name, device = "routed_linear", device_of(x)
    num_tokens, per_token, in_features = sizes_of(name, "x", x, ("T", "K", "I"), HALVES)
    num_experts, out_features, _ = sizes_of(name, "weight", weight, ("E", "N", "I"), HALVES)
    dtype = dtype_of(x)
    require(name, "weight", weight, (num_experts, out_features, in_features), (dtype,))
    require(name, "expert_ids", expert_ids, (num_tokens, per_token), INT32)
    require(name, "expert_weights", expert_weights, (num_tokens, per_token), FLOAT32)
    if residual is not None:
        require(name, "residual", residual, (num_tokens, out_features), (dtype,))
    require_few_pairs(name, num_tokens, per_token)
    out = output(name, "out", out, device, (num_tokens, out_features), dtype)
    require_unread(name, "out", out, x=x, weight=weight)
    if num_tokens == 0:
        return out
    kernel = routed_linear_kernel(
        device, x, weight, expert_ids, has_residual=residual is not None, experts_of_all=experts_of_all, pdl=pdl
    )
    if isinstance(kernel, RoutedLinearAlone):
        device.run(kernel, x, weight, expert_ids, expert_weights, residual, out)
        return out
    results = device.empty((num_tokens, per_token, out_features), "float32")
    device.run(kernel, x, weight, expert_ids, results)
    routed_sum(device, results, expert_ids, expert_weights, residual, out, num_experts, pdl=pdl)
    return out


def routed_linear_kernel(
    device: Device,
    x: Tensor,
    weight: Tensor,
    expert_ids: Tensor,
    *,
    has_residual: bool,
    experts_of_all: int | None = None,
    pdl: bool = False,
) -> RoutedLinear | RoutedLinearAlone:
    """What `routed_linear` launches first, whose operands these are. Tiles, which decide bits, are those that suit a
    token alone: it is a product with one weight of N rows."""
    tiles = tiles_of(device.num_sms, weight.shape[1])
    constants = routed_constants("routed_linear", device, x, weight, expert_ids, experts_of_all, tiles=tiles, pdl=pdl)
    *_, is_alone = constants
    return RoutedLinearAlone(*(*constants, has_residual)) if is_alone else RoutedLinear(*constants)

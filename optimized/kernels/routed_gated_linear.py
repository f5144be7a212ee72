"""Gate and up of a mixture of experts on a GPU, for few tokens: each token with the two weights of each of its experts,
and the gated activation of both products. The router's choice is all it needs: there is no dispatch.

Rounding: that of the reference, one at the end. See `few_rows` for the product, `few_rows_routed` for the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.arguments import HALVES, INT32, output, require, require_unread, sizes_of
from optimized.device import Device, Tensor, device_of, dtype_of
from optimized.kernels.activation import activated, half_of, require_activation
from optimized.kernels.few_rows_routed import RoutedFewRows, RoutedOperands
from optimized.kernels.few_rows_routed_launch import require_few_pairs, routed_constants
from optimized.kernels.rows import rows_of


@dataclass(frozen=True)
class RoutedGatedLinear(RoutedFewRows):
    """out[t, k] = act(x[t] Wg[e]^T) * (x[t] Wu[e]^T), e = expert_ids[t, k]."""

    kind: str  # of the activation

    parts = 2
    begins_early = False

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        ids = rows_of("int32", num_tokens, self.experts_per_token, 1)
        out = self.fake_pairs(self.dtype, num_tokens, self.out_features, 1)
        return self.fake_x(num_tokens), self.fake_weight(), ids, out

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, H]
        mWeight: cute.Tensor,  # [E, 2 I, H]
        mIds: cute.Tensor,  # i32 [T, K]
        mOut: cute.Tensor,  # [T, K, I]
        stream: Any,
    ) -> None:
        self.launch((mX, mWeight, mIds, mOut), self.grid(mX.shape[0] * self.experts_per_token), stream)

    def x_address(self, operands: RoutedOperands, row: cutlass.Int32) -> cutlass.Int64:
        return self.row_address(operands, self.place_of_row(operands, row)[0])

    @cute.jit
    def write(
        self, operands: RoutedOperands, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any
    ) -> None:
        token, k = self.place_of_row(operands, rUnit[3] + m)
        gate = activated(rSum[0], self.kind, self.dtype)
        operands.mOut[token, k, n] = (gate * rSum[1]).to(operands.mOut.element_type)


def routed_gated_linear(
    x: Tensor,  # [T, H], rows contiguous
    weight: Tensor,  # [E, 2 I, H], rows contiguous: gate above up
    expert_ids: Tensor,  # i32 [T, K], rows contiguous
    *,
    kind: str,  # of the activation, one of reference.model.config.ACTIVATIONS
    experts_of_all: int | None = None,
    pdl: bool = False,
    out: Tensor | None = None,  # [T, K, I], rows contiguous
) -> Tensor:  # [T, K, I], x's dtype: `out`, or new memory
    """out[t, k] = act(x[t] Wg[e]^T) * (x[t] Wu[e]^T), e = expert_ids[t, k], of bfloat16 or float16. An id that is
    negative, or not below E, has no weight here: its row is not written.

    experts_of_all: of which the router chooses, if these are some of them; for speed alone.
    pdl: programmatic dependent launch; what the launch before this one wrote is then there for the launch after it from
    its very beginning (`few_rows_routed`).
    Errors: ValueError for an activation that is not known, an odd number of rows of a weight, and more than MOST_PAIRS
    pairs of tokens and experts; ValueError, TypeError for tensors that do not fit.
    """
    name, device = "routed_gated_linear", device_of(x)
    num_tokens, hidden = sizes_of(name, "x", x, ("T", "H"), HALVES)
    num_experts, features, _ = sizes_of(name, "weight", weight, ("E", "2 I", "H"), HALVES)
    require(name, "weight", weight, (num_experts, features, hidden), (dtype_of(x),))
    _, per_token = sizes_of(name, "expert_ids", expert_ids, ("T", "K"), INT32)
    require(name, "expert_ids", expert_ids, (num_tokens, per_token), INT32)
    size = half_of(name, "weight", features, "rows an expert")
    require_activation(name, kind)
    require_few_pairs(name, num_tokens, per_token)
    out = output(name, "out", out, device, (num_tokens, per_token, size), dtype_of(x))
    require_unread(name, "out", out, x=x, weight=weight)
    if num_tokens == 0:
        return out
    kernel = routed_gated_linear_kernel(
        device, x, weight, expert_ids, kind=kind, experts_of_all=experts_of_all, pdl=pdl
    )
    device.run(kernel, x, weight, expert_ids, out)
    return out


def routed_gated_linear_kernel(
    device: Device,
    x: Tensor,
    weight: Tensor,
    expert_ids: Tensor,
    *,
    kind: str,
    experts_of_all: int | None = None,
    pdl: bool = False,
) -> RoutedGatedLinear:
    """What `routed_gated_linear` launches, whose operands these are."""
    constants = routed_constants("routed_gated_linear", device, x, weight, expert_ids, experts_of_all, parts=2, pdl=pdl)
    return RoutedGatedLinear(*(*constants, kind))

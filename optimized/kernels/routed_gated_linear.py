"""Gate and up of a mixture of experts on a GPU, for few tokens: each token with the two weights of each of its experts,
and the gated activation of both products. The router's choice is all it needs: there is no dispatch.

Rounding: that of the reference, one at the end. See `few_rows` for the product, `few_rows_routed` for the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute

from optimized.arguments import INT32, output, require, sizes_of
from optimized.device import Device, Tensor, device_of, dtype_of
from optimized.kernels.few_rows_dense import HALVES
from optimized.kernels.few_rows_routed import RoutedFewRows, RoutedOperands
from optimized.kernels.few_rows_routed_launch import require_few_pairs, routed_constants
from optimized.kernels.gated_activation import KINDS, GatedActivation
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
        self.kernel(mX, mWeight, mIds, mOut).launch(
            grid=[self.grid(mX.shape[0] * self.experts_per_token), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mWeight: cute.Tensor, mIds: cute.Tensor, mOut: cute.Tensor) -> None:
        if const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()  # before `stream` lets the next launch begin: see `few_rows_routed`
        self.stream(self.operands(mX, mWeight, mIds, mOut))

    def x_address(self, operands: RoutedOperands, row: cutlass.Int32) -> cutlass.Int64:
        return self.row_address(operands, self.place_of_row(operands, row)[0])

    @cute.jit
    def write(
        self, operands: RoutedOperands, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any
    ) -> None:
        token, k = self.place_of_row(operands, rUnit[3] + m)
        gate = GatedActivation(self.out_features, self.dtype, self.kind, 1, 1, 1).activation(rSum[0])
        operands.mOut[token, k, n] = (gate * rSum[1]).to(operands.mOut.element_type)


def routed_gated_linear(
    x: Tensor,  # [T, H], rows contiguous
    weight: Tensor,  # [E, 2 I, H], rows contiguous: gate above up
    expert_ids: Tensor,  # i32 [T, K], rows contiguous
    *,
    kind: str,  # of the activation, one of `gated_activation.KINDS`
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
    if features % 2:
        raise ValueError(f"{name}: weight has {features} rows an expert; gate and up must have as many each")
    if kind not in KINDS:
        raise ValueError(f"{name}: unknown activation {kind!r}; known are {', '.join(KINDS)}")
    require_few_pairs(name, num_tokens, per_token)
    out = output(name, "out", out, device, (num_tokens, per_token, features // 2), dtype_of(x))
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
    constants = routed_constants(device, x, weight, expert_ids, experts_of_all, parts=2, pdl=pdl)
    return RoutedGatedLinear(*(*constants, kind))

"""`routed_linear` of one token: a block goes through all of the token's experts with the same columns of the result,
and keeps their weighted sum in registers.

What a block calls its units are those of its columns, expert after expert. With K' experts, they are numbered so that
the block's unit i, as `few_rows` counts them, is expert i mod K' of the block's columns number i / K'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute

from optimized.kernels.few_rows_grouped_list import EXPERT_SHIFT
from optimized.kernels.few_rows_routed import RoutedFewRows, RoutedOperands
from optimized.kernels.rows import rows_of


@dataclass(frozen=True)
class RoutedLinearAlone(RoutedFewRows):
    """out = sum over k, ascending, of expert_weights[k] (x[k] W[e]^T), + residual, e = expert_ids[k]."""

    has_residual: bool

    kept_words = 1  # the sum so far

    @property
    def beside_words(self) -> int:
        return 1 + self.has_residual

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        x = self.fake_pairs(self.dtype, num_tokens, self.in_features, self.x_access)
        ids, expert_weights = (rows_of(dtype, num_tokens, self.experts_per_token, 1) for dtype in ("int32", "float32"))
        residual = self.fake_out(num_tokens) if self.has_residual else None
        return x, self.fake_weight(), ids, expert_weights, residual, self.fake_out(num_tokens)

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [1, K, I]
        mWeight: cute.Tensor,  # [E, N, I]
        mIds: cute.Tensor,  # i32 [1, K]
        mExpertWeights: cute.Tensor,  # f32 [1, K]
        mResidual: Any,  # [1, N], or None
        mOut: cute.Tensor,  # [1, N]
        stream: Any,
    ) -> None:
        operands = mX, mWeight, mIds, mOut, mExpertWeights, mResidual
        self.launch(operands, min(self.blocks, self.units_of_weight), stream)

    def num_units(self, operands: RoutedOperands) -> cutlass.Int32:
        """One more than the last of this block's. Every thread must call it."""
        count = self.list_chunks(operands)
        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        return block + (self.units_of_weight - block + grid - 1) // grid * count * grid

    @cute.jit
    def describe(self, operands: RoutedOperands, unit: cutlass.Int32, rUnit: cute.Tensor) -> None:
        grid, _, _ = cute.arch.grid_dim()
        number, block = cutlass.Uint32(unit) // cutlass.Uint32(grid), cutlass.Uint32(unit) % cutlass.Uint32(grid)
        count = cutlass.Uint32(operands.sTotals[0])
        place = cutlass.Int32(number % count)
        rUnit[0] = cutlass.Int32(number // count * cutlass.Uint32(grid) + block) * self.part_rows
        rUnit[1], rUnit[2], rUnit[3] = cutlass.Int32(1), operands.sChunks[place, 1] >> EXPERT_SHIFT, place

    def x_address(self, operands: RoutedOperands, row: cutlass.Int32) -> cutlass.Int64:
        return self.pair_address(operands.mX, *self.place_of_row(operands, row))

    @cute.jit
    def load_beside(self, operands: RoutedOperands, rUnit: cute.Tensor, m: Any, n: Any, rBeside: cute.Tensor) -> None:
        rBeside[0] = operands.mExpertWeights[0, operands.sPairs[rUnit[3]]]
        if const_expr(self.has_residual):
            rBeside[1] = operands.mResidual[0, n].to(cutlass.Float32)

    @cute.jit
    def write(
        self, operands: RoutedOperands, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any
    ) -> None:
        before = cutlass.Float32(0.0) if rUnit[3] == 0 else rKept[0]
        total = cute.math.fma(rBeside[0], rSum[0], before)
        rKept[0] = total
        if rUnit[3] == operands.sTotals[0] - 1:
            if const_expr(self.has_residual):
                total += rBeside[1]
            operands.mOut[0, n] = total.to(operands.mOut.element_type)

    def begin(self, rKept: cute.Tensor) -> None:
        rKept.fill(0.0)

    @cute.jit
    def end(self, operands: RoutedOperands, rKept: cute.Tensor) -> None:
        """Of a token none of whose experts is here."""
        if operands.sTotals[0] == 0:
            thread, _, _ = cute.arch.thread_idx()
            block, _, _ = cute.arch.block_idx()
            grid, _, _ = cute.arch.grid_dim()
            for n in cutlass.range(block * self.threads + thread, self.out_features, grid * self.threads, unroll=1):
                total = cutlass.Float32(0.0)
                if const_expr(self.has_residual):
                    total = operands.mResidual[0, n].to(cutlass.Float32)
                operands.mOut[0, n] = total.to(operands.mOut.element_type)

"""`few_rows` over the experts of a mixture: what `grouped_linear` and `grouped_gated_linear` share.

A unit is a chunk of up to 8 row_tiles rows of one expert, and some rows of that expert's weight. How many units there
are only the device knows: each block lists the chunks (`few_rows_grouped_list`), and then goes from unit to unit as all
such kernels do. An expert without rows has no chunk: its weight is not read. One with more rows than a chunk takes has
several, whose units want the same rows of the weight at about the same time: these come from memory once, and then from
the L2 cache.

Which chunk a row is in, and beside which others, shows in no bit of its result: the order of the sum is a matter of the
row of the weight alone, as `few_rows` says, and columns of a product of the tensor core know nothing of each other.

Programmatic dependent launch, a contract between launches that follow each other: dispatch, gate and up, down. Where a
weight's rows lie depends on expert_offsets, which dispatch writes. `grouped_gated_linear` waits for it, and only then
lets the next launch begin (see `few_rows`). So whatever is launched next may read expert_offsets, and
whatever else dispatch wrote, before it waits itself: `grouped_linear` does, and has its first weights under way before
gate and up are done.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from optimized.kernels.few_rows import FewRows
from optimized.kernels.few_rows_grouped_list import EXPERT_SHIFT, list_chunks, load_begins
from optimized.kernels.few_rows_ring import lane_place, rows_at_once
from optimized.kernels.rows import DTYPES


class GroupedOperands(NamedTuple):
    """What units are made of."""

    mX: cute.Tensor  # [R, K] or [T, K]
    mWeight: cute.Tensor  # [E, parts N, K]
    mOffsets: cute.Tensor  # i32 [E + 1]
    mOut: cute.Tensor  # [R, N]
    sChunks: cute.Tensor  # i32 [2 E, 2], see `list_chunks`
    sTotals: cute.Tensor  # i32 [warps]
    sTokens: Any  # i32 [TOKENS_HELD], see `hold_tokens`; None where rows are not gathered
    mTokens: Any  # i32 [R]; or None


@dataclass(frozen=True)
class GroupedFewRows(FewRows):
    """All that does not depend on where rows of x are, and what becomes of the sums."""

    num_experts: int
    expert_stride: int  # from one expert's weight to the next

    unit_words = 4  # first row of each part, rows of x, the expert, the first of its rows

    def fake_weight(self) -> Any:
        shape = self.num_experts, self.parts * self.out_features, self.in_features
        strides = self.expert_stride, self.weight_stride, 1
        return make_fake_tensor(DTYPES[self.dtype], shape, strides, assumed_align=self.weight_access)

    @property
    def most_rows(self) -> int:
        """Of a chunk."""
        return 8 * self.row_tiles

    def grid(self, num_rows: Any) -> Any:
        """num_rows: of all experts. A block for each unit that there could be, as far as they go."""
        return cutlass.min(self.blocks, self.units_of_weight * cutlass.min(num_rows, 2 * self.num_experts))

    def row_address(self, operands: Any, number: cutlass.Int32) -> cutlass.Int64:
        """Of a row of x [rows, K]."""
        stride = cutlass.Int64(operands.mX.stride[0]) * self.itemsize
        return operands.mX.iterator.toint() + cutlass.Int64(number) * stride

    @abstractmethod
    def x_address(self, operands: Any, row: cutlass.Int32) -> cutlass.Int64:
        """Of what a row of the experts is multiplied by."""

    def prepare(self, operands: Any) -> None:
        """What a block does before its threads first meet."""

    def num_units(self, operands: Any) -> cutlass.Int32:
        """Lists the chunks. Every thread must call it."""
        rBegin = load_begins(operands.mOffsets, self.threads)
        self.prepare(operands)
        chunks = list_chunks(rBegin, operands.sChunks, operands.sTotals, self.most_rows, self.threads)
        return chunks * self.units_of_weight

    def describe(self, operands: Any, unit: cutlass.Int32, rUnit: cute.Tensor) -> None:
        number = cutlass.Uint32(unit)  # division of unsigned numbers is the shorter one
        chunk = cutlass.Int32(number // self.units_of_weight)
        rows = operands.sChunks[chunk, 1]
        rUnit[0] = cutlass.Int32(number % self.units_of_weight) * self.part_rows
        rUnit[1], rUnit[2] = rows & ((1 << EXPERT_SHIFT) - 1), rows >> EXPERT_SHIFT
        rUnit[3] = operands.sChunks[chunk, 0]

    @cute.jit
    def point(self, operands: Any, rUnit: cute.Tensor, rWeight: cute.Tensor, rX: cute.Tensor) -> None:
        row, byte = lane_place(self.weight_access)
        of_expert = operands.mWeight.iterator.toint() + cutlass.Int64(rUnit[2]) * (self.expert_stride * self.itemsize)
        for part in range_constexpr(self.parts):
            number = cutlass.Int64(rUnit[0] + row + part * self.out_features)
            rWeight[part] = of_expert + number * (self.weight_stride * self.itemsize) + cutlass.Int64(byte)
        row, byte = lane_place(self.x_access)
        for i in range_constexpr(self.x_accesses):
            of_chunk = cutlass.min(row + i * rows_at_once(self.x_access), rUnit[1] - 1)
            rX[i] = self.x_address(operands, rUnit[3] + of_chunk) + cutlass.Int64(byte)

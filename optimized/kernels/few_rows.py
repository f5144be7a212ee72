"""Matrix products for few rows: out[m] = x[m] W^T, bound by how fast W comes from memory.

The weight's rows are the rows of the tensor core's product, 16 at a time, and rows of x its columns, 8 at a time. A
unit is `tiles` times 16 rows of the weight, or, of a weight in two parts that make one result (gate and up), `tiles`
times 8 rows of each. Blocks go from unit to unit. Each warp of a block streams its own part of every row through its
own ring in shared memory (`few_rows_ring`), and waits for nobody; at the end of a unit the warps' sums are added
(`few_rows_sum`), and the kernel at hand makes its results of them.

Order of the sum over k, which alone decides a result's bits: chunk c, 64 elements, belongs to warp c mod 4. A warp
adds its chunks by the tensor core, 16 elements at once, in rising order from one that the unit's number chooses, and
around. Then the 4 sums are added in order, in float32. Which unit a row of the weight belongs to depends on the
weight's shape and the chip alone (`tiles_of`). So nothing depends on how many rows of x there are, which of them it
is, or what another holds: a row has the same bits alone and in any company.

A kernel is a subclass, and says by its methods where a unit's rows lie (`describe`, `point`), and what is done with
its sums (`load_beside`, `write`).

With `pdl` (programmatic dependent launch) it begins while the kernel before it still runs: the first stages of the
weight, and of a norm's, are under way before it waits for that one's results, x among them. So that kernel must not
write weights. One that does not begin early (`begins_early`) waits first, and only then lets the next one begin."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor
from cutlass.memory import SmemAllocator

from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP
from optimized.kernels.few_rows_launch import CHUNK, CHUNK_BYTES, WARPS
from optimized.kernels.few_rows_ring import begin_source, new_source, rows_at_once, stage_next
from optimized.kernels.few_rows_sum import (
    finish,
    is_loaded_early,
    load_beside,
    multiply,
    new_beside,
    passes,
    place_x,
    put_squares,
    results,
    shared_squares,
    shared_sums,
)
from optimized.kernels.rows import DTYPES, itemsize, rows_of


@dataclass(frozen=True)
class FewRows(Kernel):
    """The constants of all such kernels, and the loop that they share. Sizes are in elements unless said otherwise."""

    in_features: int  # K
    out_features: int  # N, rows of each part of the weight
    dtype: str  # of x and the weight: "bfloat16" or "float16"
    weight_stride: int  # from one row of the weight to the next
    weight_access: int  # bytes that a lane copies at once: 16, 8, 4 or 2
    x_access: int
    row_tiles: int  # of 8 rows of x
    tiles: int  # of 16 rows of the weight
    stages: int
    blocks: int  # at most
    pdl: bool

    parts = 1  # of the weight, whose rows n together make result n: 1 or 2
    unit_words = 2  # of what `describe` says
    keeps_rows = False  # are all results of a thread and a pass those of one row of x, in all units?
    begins_early = True  # is where a unit's weight lies known without any result of the kernel before?

    @property
    def has_norm(self) -> bool:
        """Are x's rows normalised, by `norm_weight_of` and their mean square?"""
        return False

    @property
    def beside_words(self) -> int:
        """Of what `load_beside` keeps of a result."""
        return 0

    @property
    def kept_words(self) -> int:
        """Of what `write` keeps from unit to unit, where the kernel `keeps_rows`."""
        return 0

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def bytes_of_row(self) -> int:
        return self.in_features * self.itemsize

    @property
    def part_rows(self) -> int:
        """Of a unit."""
        return 16 * self.tiles // self.parts

    def row_of_part(self, row: int) -> tuple[int, int]:
        """A unit's row of the weight: which part's it is, and which of that. Parts take turns by 8 rows, so that a lane
        has both in one tile."""
        return (0, row) if self.parts == 1 else (row // 8 % 2, row // 16 * 8 + row % 8)

    @property
    def x_begin(self) -> int:
        """Bytes of a stage before rows of x."""
        return 16 * self.tiles * CHUNK_BYTES

    @property
    def norm_begin(self) -> int:
        """And before the norm's weight."""
        return self.x_begin + 8 * self.row_tiles * CHUNK_BYTES

    @property
    def stage_bytes(self) -> int:
        return self.norm_begin + self.has_norm * CHUNK_BYTES

    @property
    def steps(self) -> int:
        """Stages of a warp for one unit."""
        return -(-self.in_features // (CHUNK * WARPS))

    @property
    def has_k_tail(self) -> bool:
        """Are there steps of which a warp's chunk is not, or not wholly, there?"""
        return self.in_features % (CHUNK * WARPS) > 0

    @property
    def has_n_tail(self) -> bool:
        return self.out_features % self.part_rows > 0

    @property
    def x_accesses(self) -> int:
        """Rows of x that a lane copies a part of."""
        return 8 * self.row_tiles // rows_at_once(self.x_access)

    @property
    def x_words(self) -> int:
        """Addresses that `point` gives of x."""
        return self.x_accesses

    @property
    def threads(self) -> int:
        return WARPS * WARP

    @property
    def units_of_weight(self) -> int:
        return -(-self.out_features // self.part_rows)

    def fake_x(self, num_rows: Any) -> Any:
        """[num_rows, K], rows contiguous. One row has no next: its stride may be any."""
        shape = num_rows, self.in_features
        return make_fake_tensor(DTYPES[self.dtype], shape, (cute.sym_int64(), 1), assumed_align=self.x_access)

    def fake_out(self, num_rows: Any) -> Any:
        """[num_rows, N], rows contiguous, wherever they begin."""
        return rows_of(self.dtype, num_rows, self.out_features, 1)

    def launch(self, operands: tuple[Any, ...], blocks: Any, stream: Any) -> None:
        self.kernel(operands).launch(
            grid=[blocks, 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, operands: tuple[Any, ...]) -> None:
        self.stream(self.beside_ring(operands))

    # What a kernel says of its units. operands: what `beside_ring` makes of those it was launched with.

    def beside_ring(self, operands: Any) -> Any:
        """With whatever else of shared memory the kernel's own methods take."""
        return operands

    @abstractmethod
    def num_units(self, operands: Any) -> Any:
        """One more than the number of the block's last. Every thread must call it."""

    @abstractmethod
    def describe(self, operands: Any, unit: cutlass.Int32, rUnit: cute.Tensor) -> None:
        """rUnit, i32 [unit_words]: the unit's first row of each part, how many rows of x it has (1 to 8 row_tiles), and
        whatever else the kernel's own methods want to know."""

    @abstractmethod
    def point(self, operands: Any, rUnit: cute.Tensor, rWeight: cute.Tensor, rX: cute.Tensor) -> None:
        """rWeight, i64 [parts]: of each part, the address of this lane's byte of its first row of the unit, as
        `lane_place` says. rX, i64 [x_words]: likewise, what `x_source` wants to know."""

    def x_source(self, rX: cute.Tensor, access: int) -> tuple[cutlass.Int64, int]:
        """Address of this lane's byte of the row of x that it copies with an access, and bytes behind that."""
        return rX[access], 0

    def norm_weight_of(self, operands: Any) -> Any:  # [K], x's dtype; None where rows are not normalised
        return None

    def load_beside(self, operands: Any, rUnit: cute.Tensor, m: Any, n: Any, rBeside: cute.Tensor) -> None:
        """rBeside, f32 [beside_words]: what result (m, n) needs beside the product, loaded while that is computed. m:
        row of x in the unit; n: row of a part of the weight."""

    @abstractmethod
    def write(self, operands: Any, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any) -> None:
        """What is done with result (m, n). rSum, f32 [parts]: its sums; rKept, f32 [kept_words]."""

    def begin(self, rKept: cute.Tensor) -> None:
        """Before the first unit. rKept, f32 [kept_words, passes]: see `keeps_rows`."""

    def end(self, operands: Any, rKept: cute.Tensor) -> None:
        """After the block's last unit."""

    @cute.jit
    def stream(self, operands: Any) -> None:
        """All that a block does. Every thread must call it."""
        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        words = cute.make_layout(WARPS * self.stages * self.stage_bytes // 4)
        sRing = SmemAllocator().allocate_tensor(cutlass.Int32, words, byte_alignment=CHUNK_BYTES)
        ring = sRing.iterator.toint() + warp * (self.stages * self.stage_bytes)
        sSums, sSquares = shared_sums(self), shared_squares(self)
        rSums = cute.make_rmem_tensor((self.tiles, self.row_tiles, 4), cutlass.Float32)
        rSquares = cute.make_rmem_tensor((self.row_tiles,), cutlass.Float32)
        rX_place = cute.make_rmem_tensor((self.row_tiles,), cutlass.Int32)
        rUnit = cute.make_rmem_tensor((self.unit_words,), cutlass.Int32)
        rKept = cute.make_rmem_tensor((max(1, self.kept_words), passes(self)), cutlass.Float32)
        rBeside = new_beside(self)
        rSquares.fill(0.0)
        self.begin(rKept)
        is_early = self.pdl and self.begins_early
        if const_expr(self.pdl):
            if const_expr(not is_early):  # what the launch before wrote is there for the next from its very beginning
                cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        units = self.num_units(operands)
        ahead = new_source(self)
        begin_source(self, operands, ahead, units)
        for _ in range_constexpr(self.stages - 1):
            stage_next(self, operands, ahead, ring, units, "weights" if is_early else "both")
        if const_expr(is_early):
            # Groups of their own: who waits for a stage's x waits for all these weights, which have come long before.
            cute.arch.griddepcontrol_wait()
            begin_source(self, operands, ahead, units)
            for _ in range_constexpr(self.stages - 1):
                stage_next(self, operands, ahead, ring, units, "x")
        stage, parity = cutlass.Int32(0), cutlass.Int32(0)
        for unit in cutlass.range(block, units, grid, unroll=1):
            self.describe(operands, unit, rUnit)
            place_x(self, rUnit[1], rX_place)
            if const_expr(is_loaded_early(self)):
                load_beside(self, operands, rUnit, rBeside, 0, results(self))
            rSums.fill(0.0)
            for _step in cutlass.range(self.steps, unroll=1):
                # The warp's oldest stage is there, and all its lanes are done with the one that is filled next.
                cute.arch.cp_async_wait_group(self.stages - 2)
                cute.arch.sync_warp()
                stage_next(self, operands, ahead, ring, units, "both")
                multiply(self, ring + stage, rX_place, rSums, rSquares, unit == block)
                stage = stage + self.stage_bytes if stage < (self.stages - 1) * self.stage_bytes else cutlass.Int32(0)
            if const_expr(self.has_norm):  # noqa: SIM102, the outer condition is of compile time
                if unit == block:
                    put_squares(self, rSquares, sSquares)
            finish(self, operands, rUnit, rSums, sSums, sSquares, rBeside, rKept, parity)
            parity = (parity + passes(self)) % 2
        self.end(operands, rKept)

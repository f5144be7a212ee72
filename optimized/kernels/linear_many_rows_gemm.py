"""The matrix product of quack-kernels as a kernel of this panel, for Hopper and for Blackwell.

One class stands for all of its forms: dense, or rows grouped by experts; with a bias, a residual, or the gated
activation of gate and up. Sizes are arguments of the compiled code, tiles are its constants. The sum over k is one sum
in float32, in order of k, whatever the tile; no part of it is added elsewhere, so that a row's bits do not depend on
how many rows there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.arch import Arch
from optimized.compile.kernel import Kernel
from optimized.kernels.rows import DTYPES, itemsize, rows_of, vector_of
from optimized.libraries import QUACK, library_versions, part_of_library

ALIGNMENT = 16  # bytes: where tensors, and rows of them, begin for the copy engine
_SWIZZLE = 8  # tiles of a group that share what they read
_CONFIG = re.compile(r"(\d+)x(\d+) (\d)x(\d)( pingpong)?")


@dataclass(frozen=True)
class Tiling:
    """How a product is cut: rows and columns of a tile, tiles of a cluster along each, and whether two groups of warps
    take turns, one adding up while the other writes (on Hopper)."""

    tile_m: int
    tile_n: int
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False

    def __str__(self) -> str:
        turns = " pingpong" if self.pingpong else ""
        return f"{self.tile_m}x{self.tile_n} {self.cluster_m}x{self.cluster_n}{turns}"

    @staticmethod
    def parse(text: str) -> Tiling:
        """Errors: ValueError."""
        found = _CONFIG.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no tiling; one is written like '128x192 2x1 pingpong'")
        tile_m, tile_n, cluster_m, cluster_n = map(int, found.groups()[:4])
        return Tiling(tile_m, tile_n, cluster_m, cluster_n, found.group(5) is not None)


# The tilings that `diptych tune` measures, the usual one first.
TILINGS = {
    9: tuple(
        Tiling.parse(text)
        for text in (
            "128x192 2x1 pingpong",
            "128x256 2x1",
            "256x128 2x1",
            "256x192 1x2",
            "128x128 2x1 pingpong",
            "128x128 1x2 pingpong",
            "128x160 1x2 pingpong",
            "64x256 1x2 pingpong",
            "64x192 1x1 pingpong",
            "128x64 1x1 pingpong",
        )
    ),
    10: tuple(
        Tiling.parse(text)
        for text in ("256x256 2x1", "256x128 2x1", "256x192 2x1", "128x256 1x1", "128x128 1x1", "128x64 1x1")
    ),
}


def generation_of(arch: Arch) -> int:
    """9: Hopper; 10: Blackwell."""
    return arch.compute_capability[0]


@dataclass(frozen=True)
class ManyRowsGemm(Kernel):
    """out = x W^T (+ bias) (+ residual), or act(x Wg^T) * (x Wu^T), W being Wg above Wu; W of each row's expert where
    rows are grouped."""

    generation: int
    dtype: str
    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    pingpong: bool
    clusters: int  # launched at most
    bias_dtype: str  # empty: there is none
    has_residual: bool
    is_gated: bool
    is_grouped: bool
    gathers: bool

    @property
    def constants(self) -> dict[str, Any]:
        return super().constants | library_versions(QUACK)

    @property
    def tiling(self) -> Tiling:
        return Tiling(self.tile_m, self.tile_n, self.cluster_m, self.cluster_n, self.pingpong)

    def arguments(self) -> tuple[Any, ...]:
        vector = ALIGNMENT // itemsize(self.dtype)
        num_rows, channels, features = cute.sym_int(), cute.sym_int(), cute.sym_int()
        outputs = cute.sym_int() if self.is_gated else features
        x = rows_of(self.dtype, cute.sym_int() if self.gathers else num_rows, channels, vector)
        out, residual = (rows_of(self.dtype, num_rows, outputs, vector) for _ in range(2))
        weight = rows_of(self.dtype, features, channels, vector)
        offsets = source = None
        if self.is_grouped:
            stride = cute.sym_int64(divisibility=vector)
            shape, strides = (cute.sym_int(), *weight.shape), (stride, *weight.stride)
            weight = make_fake_tensor(DTYPES[self.dtype], shape, strides, assumed_align=ALIGNMENT)
            offsets = vector_of("int32", cute.sym_int())
            source = vector_of("int32", num_rows) if self.gathers else None
        bias = (
            None
            if not self.bias_dtype
            else vector_of(self.bias_dtype, features, ALIGNMENT // itemsize(self.bias_dtype))
        )
        return x, weight, bias, residual if self.has_residual else None, offsets, source, out

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, K]
        mWeight: cute.Tensor,  # [N, K], or [E, N, K] where rows are grouped
        mBias: Any,  # [N], or None
        mResidual: Any,  # [T, N], or None
        mOffsets: Any,  # i32 [E + 1], or None
        mSource: Any,  # i32 [R]: the row of x that each row is; or None
        mOut: cute.Tensor,  # [T, N]; [T, N / 2] if gated
        stream: Any,
    ) -> None:
        bias = None
        if const_expr(self.bias_dtype):
            bias = cute.make_tensor(mBias.iterator, cute.make_layout((1, mBias.shape[0]), stride=(0, 1)))
        self.product(mX, mWeight, bias, mResidual, mOffsets, mSource, mOut, stream)

    def product(
        self, mX: Any, mWeight: Any, mBias: Any, mResidual: Any, mOffsets: Any, mSource: Any, mOut: Any, stream: Any
    ) -> None:
        """The library's host code, traced into this one's."""
        gemm_class = self._gemm_class()
        options: dict[str, Any] = {"pingpong": self.pingpong} if self.generation == 9 else {}
        gemm = gemm_class(
            cutlass.Float32,
            mX.element_type,
            (self.tile_m, self.tile_n),
            (self.cluster_m, self.cluster_n, 1),
            gather_A=self.gathers,
            # Gate above up: the library wants their rows in turn, and sees them so.
            concat_layout=("B",) if self.is_gated else None,
            # An early launch's warps read where experts begin before they wait for the launch that writes it.
            use_pdl=not self.is_grouped,
            **options,
        )
        terms = {"postact": mOut} if self.is_gated else {"mRowVecBroadcast": mBias}
        schedule = part_of_library("quack.tile_scheduler:TileSchedulerOptions")(
            max_active_clusters=cutlass.Int32(self.clusters), max_swizzle_size=cutlass.Int32(_SWIZZLE)
        )
        groups = None
        if self.is_grouped:
            groups = part_of_library("quack.varlen_utils:VarlenArguments")(mCuSeqlensM=mOffsets, mAIdx=mSource)
        whole = None if self.is_gated else mOut
        epilogue = gemm_class.EpilogueArguments(**terms)
        gemm(mX, mWeight, whole, mResidual, epilogue, schedule, groups, stream, None, None)

    def _gemm_class(self) -> Any:
        if not self.is_gated:
            name = {9: "GemmDefaultSm90", 10: "GemmDefaultSm100"}[self.generation]
            return part_of_library(f"quack.gemm_default_epi:{name}")
        rounding = part_of_library("quack.rounding:RoundingMode").RN
        gated = part_of_library("quack.epilogue.library:swiglu_mod")
        # operands, chip, pairs of neighbours, packed inputs, first pass, rounding, forms of arguments, adds to output
        return gated._mint((), self.generation, True, False, (), rounding, (), False)


def fits_tiling(tiling: Tiling, generation: int, *, is_gated: bool, gathers: bool) -> bool:
    """Can the library's kernel do this with such tiles?

    Pairs of columns are written by 32. Gathered rows are not shared by the tiles of a cluster that lie side by side,
    and the threads that fetch them leave Hopper too few registers for tiles of 256 rows.
    """
    if gathers and (tiling.cluster_n > 1 or (generation == 9 and tiling.tile_m > 128)):
        return False
    return tiling.tile_n % 32 == 0 or not is_gated

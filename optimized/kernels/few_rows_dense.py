"""`few_rows` over one weight and one x: what `linear`, `gated_linear` and `vocabulary_head` share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from optimized.arguments import HALVES, require, sizes_of
from optimized.device import Device, Tensor, dtype_of
from optimized.kernels.few_rows import FewRows
from optimized.kernels.few_rows_launch import MOST_ROWS, access_of, few_rows_launch, strides_of
from optimized.kernels.few_rows_ring import lane_place, rows_at_once
from optimized.kernels.linear_many_rows import is_aligned
from optimized.kernels.rows import DTYPES
from optimized.libraries import QUACK, library_versions


@dataclass(frozen=True)
class DenseFewRows(FewRows):
    """operands begin with x [T, K], the weight [parts N, K] (part after part), and the norm's weight [K] or None.

    More rows than one unit takes are cut into chunks, whose units want the same rows of the weight one after another:
    then these come from memory once, and from the L2 cache after that."""

    x_stride: int  # from one row of x to the next
    is_normed: bool
    eps: float
    weight_bias: float

    unit_words = 3  # the unit's first row of each part, its rows of x, and the first of these

    @property
    def has_norm(self) -> bool:
        return self.is_normed

    def fake_inputs(self, num_rows: Any) -> tuple[Any, Any, Any]:
        """x, the weight, and the norm's weight."""
        dtype, k = DTYPES[self.dtype], self.in_features
        shape, strides = (self.parts * self.out_features, k), (self.weight_stride, 1)
        weight = make_fake_tensor(dtype, shape, strides, assumed_align=self.weight_access)
        norm_weight = make_fake_tensor(dtype, (k,), (1,), assumed_align=self.weight_access)
        return self.fake_x(num_rows), weight, norm_weight if self.has_norm else None

    def chunks(self, num_rows: Any) -> Any:
        return (num_rows + 8 * self.row_tiles - 1) // (8 * self.row_tiles)

    def grid(self, num_rows: Any) -> Any:
        return cutlass.min(self.units_of_weight * self.chunks(num_rows), self.blocks)

    def num_units(self, operands: Any) -> Any:
        return cutlass.Int32(self.units_of_weight * self.chunks(operands[0].shape[0]))

    def norm_weight_of(self, operands: Any) -> cute.Tensor:
        return operands[2]

    def describe(self, operands: Any, unit: cutlass.Int32, rUnit: cute.Tensor) -> None:
        num_rows = operands[0].shape[0]
        chunks = self.chunks(num_rows)
        first = unit % chunks * (8 * self.row_tiles)
        rUnit[0] = unit // chunks * self.part_rows
        rUnit[1], rUnit[2] = cutlass.Int32(cutlass.min(num_rows - first, 8 * self.row_tiles)), cutlass.Int32(first)

    @cute.jit
    def point(self, operands: Any, rUnit: cute.Tensor, rWeight: cute.Tensor, rX: cute.Tensor) -> None:
        mX, mWeight = operands[0], operands[1]
        row, byte = lane_place(self.weight_access)
        for part in range_constexpr(self.parts):
            number = cutlass.Int64(rUnit[0] + row + part * self.out_features)
            address = mWeight.iterator.toint() + number * (self.weight_stride * self.itemsize)
            rWeight[part] = address + cutlass.Int64(byte)
        row, byte = lane_place(self.x_access)
        number = cutlass.Int64(rUnit[2] + row)
        rX[0] = mX.iterator.toint() + number * (self.x_stride * self.itemsize) + cutlass.Int64(byte)

    @property
    def x_words(self) -> int:
        return 1

    def x_source(self, rX: cute.Tensor, access: int) -> tuple[cutlass.Int64, int]:
        return rX[0], access * rows_at_once(self.x_access) * self.x_stride * self.itemsize


def dense_constants(
    operation: str,
    device: Device,
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None,
    *,
    parts: int = 1,
    eps: float,
    weight_bias: float,
    pdl: bool,
) -> dict[str, Any]:
    """Of a `DenseFewRows`, whose x and weight are checked. Errors: ValueError, TypeError for a norm weight that does
    not fit, what belongs to a norm where there is none, and more rows than are normalised."""
    num_rows, in_features = x.shape
    dtype = dtype_of(x)
    if norm_weight is None and (eps, weight_bias) != (0.0, 0.0):
        raise ValueError(
            f"{operation}: eps is {eps} and weight_bias {weight_bias}, which are a norm's, and there is no norm_weight"
        )
    if norm_weight is not None and num_rows > MOST_ROWS:
        raise ValueError(
            f"{operation}: up to {MOST_ROWS} rows are normalised with the product, these are {num_rows}: normalise "
            "them with rms_norm first"
        )
    beside = () if norm_weight is None else (norm_weight,)
    if norm_weight is not None:
        require(operation, "norm_weight", norm_weight, (in_features,), (dtype,))
        if dtype == "float16":
            raise TypeError(
                f"{operation}: x is float16 and is to be normalised; x norm_weight may overflow float16 before the "
                "norm makes it small again: normalise it with rms_norm first"
            )
    launch = few_rows_launch(
        device.arch,
        device.num_sms,
        num_rows,
        weight.shape[0] // parts,
        parts=parts,
        has_norm=norm_weight is not None,
    )
    return {
        "in_features": in_features,
        "out_features": weight.shape[0] // parts,
        "dtype": dtype,
        "weight_stride": strides_of(weight)[0],
        "weight_access": access_of(weight, *beside),
        "x_access": access_of(x),
        **asdict(launch),
        "pdl": bool(pdl),
        "x_stride": strides_of(x)[0],
        "is_normed": norm_weight is not None,
        "eps": float(eps),
        "weight_bias": float(weight_bias),
    }


def quack_takes(*tensors: Tensor) -> bool:
    """Is the product of quack-kernels installed, and do these begin where it can read them?"""
    return library_versions(QUACK)[QUACK] != "" and all(map(is_aligned, tensors))


def dense_sizes(operation: str, x: Tensor, weight: Tensor, rows: str) -> tuple[int, int, int]:
    """Rows, K, and rows of the weight, by a name for errors. Errors: ValueError, TypeError for tensors that do not
    fit."""
    num_rows, in_features = sizes_of(operation, "x", x, ("T", "K"), HALVES)
    (num_weight_rows, _) = sizes_of(operation, "weight", weight, (rows, "K"), HALVES)
    require(operation, "weight", weight, (num_weight_rows, in_features), (dtype_of(x),))
    if num_weight_rows == 0:
        raise ValueError(f"{operation}: weight has no rows; it must have 1 or more")
    return num_rows, in_features, num_weight_rows

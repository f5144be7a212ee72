"""Linear projections of many rows on a GPU: by cuBLAS, or by the product of quack-kernels, whichever was measured to be
faster.

Rounding: that of the reference: sums in float32, one rounding at the end. The gated activation is computed of the
float32 sums, so that gate and up are not rounded before it. Where sums are split over k and in what order their parts
are added is cuBLAS's choice, which depends on the number of rows; quack's does not.
"""

from __future__ import annotations

from functools import partial

from optimized.arguments import FLOATS, HALVES, output, require, sizes_of
from optimized.compile.arch import SM_90A
from optimized.device import Device, Outline, Tensor, device_of, dtype_of, libraries_take
from optimized.kernels.linear_many_rows_cublas import cublas_product
from optimized.kernels.linear_many_rows_gemm import (
    ALIGNMENT,
    TILINGS,
    ManyRowsGemm,
    Tiling,
    fits_tiling,
    generation_of,
)
from optimized.tuned import CUBLAS, QUACK, run_choice, tuned_for


def linear_many_rows(
    x: Tensor,  # [T, K], rows contiguous
    weight: Tensor,  # [N, K], rows contiguous; gate above up if there is an activation
    bias: Tensor | None = None,  # [N]
    residual: Tensor | None = None,  # [T, N]
    *,
    activation: str | None = None,  # "silu": out = silu(x Wg^T) * (x Wu^T)
    choice: str | None = None,  # "cublas", or "quack TILING"; None: the fastest that was measured
    invariant: bool = False,
    out: Tensor | None = None,  # [T, N], or [T, N / 2] if there is an activation
) -> Tensor:  # out, or new memory; x's dtype
    """out = x W^T (+ bias) (+ residual). out may be the residual.

    invariant: a row's bits do not depend on what other rows there are, nor on how many: the choice is then one for all
    numbers of rows.
    Errors: ValueError for a choice that cannot do it; ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(x)
    num_rows, channels = sizes_of("linear_many_rows", "x", x, ("T", "K"), HALVES)
    features, _ = sizes_of("linear_many_rows", "weight", weight, ("N", "K"), HALVES)
    dtype = dtype_of(x)
    require("linear_many_rows", "weight", weight, (features, channels), (dtype,))
    outputs = features if activation is None else gated_outputs("linear_many_rows", features, activation)
    if activation is not None and (bias is not None or residual is not None):
        raise ValueError("linear_many_rows: neither bias nor residual is added to what a gated activation takes")
    if bias is not None:
        require("linear_many_rows", "bias", bias, (features,), FLOATS)
    if residual is not None:
        require("linear_many_rows", "residual", residual, (num_rows, features), (dtype,))
    out = output("linear_many_rows", "out", out, device, (num_rows, outputs), dtype)
    if num_rows == 0:
        return out
    tensors = [one for one in (x, weight, bias, residual, out) if one is not None]
    bias_dtype = "" if bias is None else dtype_of(bias)
    by_cublas = activation is None and not invariant and libraries_take(x)
    in_one = residual is None and bias_dtype in ("", dtype)  # launch; else cuBLAS writes float32 sums first
    sizes = features, channels
    if choice is None:
        choice = _chosen(device, x, tensors, sizes, activation, by_cublas, in_one, invariant)
    if choice == CUBLAS:
        if not by_cublas:
            raise ValueError(
                "linear_many_rows: cublas has no gated activation, is not invariant, and takes tensors of torch on a "
                "GPU; quack is, and takes others"
            )
        if not isinstance(x, Outline):  # of which there is nothing to launch: cuBLAS is compiled
            cublas_product(x, weight, bias, residual, out)
        return out
    require_aligned("linear_many_rows", tensors)
    kernel = gemm_kernel(
        device, choice, dtype, bias_dtype=bias_dtype, has_residual=residual is not None, is_gated=activation is not None
    )
    other = partial(other_tiles, device, choice, is_gated=activation is not None)
    instead = (lambda: CUBLAS) if by_cublas else other
    run_choice(device, "linear_many_rows", choice, instead, kernel, x, weight, bias, residual, None, None, out)
    return out


def _chosen(
    device: Device,
    x: Tensor,
    tensors: list[Tensor],
    sizes: tuple[int, int],
    activation: str | None,
    by_cublas: bool,
    in_one: bool,
    invariant: bool,
) -> str:
    """The fastest that can. Where nothing was measured: cuBLAS if it can in one launch, else quack's usual tiles, where
    there are as many as multiprocessors; for it does not split a sum over k, and cuBLAS does."""
    operation = "gated_linear" if activation is not None else "linear" if in_one else "linear_residual"
    by_quack = all(map(is_aligned, tensors))
    ranked = tuned_for(device, x).ranked(operation, sizes, dtype_of(x), x.shape[0], invariant=invariant)
    for choice in ranked:
        if by_cublas if choice == CUBLAS else by_quack:
            return choice
    usual = usual_choice(device)
    tiling = Tiling.parse(usual.removeprefix(f"{QUACK} "))
    fills_chip = -(-x.shape[0] // tiling.tile_m) * -(-sizes[0] // tiling.tile_n) >= device.num_sms
    return CUBLAS if by_cublas and (in_one or not by_quack or not fills_chip) else usual


def usual_choice(device: Device) -> str:
    """quack's tiles where nothing was measured."""
    return f"{QUACK} {TILINGS[generation_of(device.arch)][0]}"


def other_tiles(device: Device, choice: str, *, is_gated: bool, gathers: bool = False) -> str:
    """The first of quack's tiles that can do the same."""
    generation = generation_of(device.arch)
    able = (one for one in TILINGS[generation] if fits_tiling(one, generation, is_gated=is_gated, gathers=gathers))
    return next(name for name in (f"{QUACK} {one}" for one in able) if name != choice)


def gemm_kernel(
    device: Device,
    choice: str,
    dtype: str,
    *,
    bias_dtype: str = "",
    has_residual: bool = False,
    is_gated: bool = False,
    is_grouped: bool = False,
    gathers: bool = False,
) -> ManyRowsGemm:
    """By a choice's name. Errors: ValueError for another name, or for tiles that cannot do it."""
    library, _, text = choice.partition(" ")
    if library != QUACK:
        raise ValueError(f"unknown choice {choice!r}; known are {CUBLAS!r} and '{QUACK} TILING'")
    tiling = Tiling.parse(text)
    if not fits_tiling(tiling, generation_of(device.arch), is_gated=is_gated, gathers=gathers):
        raise ValueError(
            f"tiles of {tiling} cannot do it: with a gated activation their columns are a multiple of 32; with "
            f"gathered rows clusters are one tile wide, and tiles have up to 128 rows on {SM_90A.chip}"
        )
    return ManyRowsGemm(
        generation_of(device.arch),
        dtype,
        tiling.tile_m,
        tiling.tile_n,
        tiling.cluster_m,
        tiling.cluster_n,
        tiling.pingpong,
        max(1, device.num_sms // (tiling.cluster_m * tiling.cluster_n)),
        bias_dtype,
        has_residual,
        is_gated,
        is_grouped,
        gathers,
    )


def gated_outputs(operation: str, features: int, activation: str) -> int:
    """Channels that a gated activation leaves of a product's. Errors: ValueError."""
    if activation != "silu":
        raise ValueError(f"{operation}: the activation {activation!r} is not fused with a product; 'silu' is")
    if features % 2:
        raise ValueError(f"{operation}: weight has {features} rows; gate and up must have as many as each other")
    return features // 2


def is_aligned(tensor: Tensor) -> bool:
    """Do a tensor and its rows begin where the copy engine can?"""
    vector = ALIGNMENT // 2  # elements of 16 bits
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride()[:-1], strict=False) if size > 1]
    return tensor.data_ptr() % ALIGNMENT == 0 and all(stride % vector == 0 for stride in strides)


def require_aligned(operation: str, tensors: list[Tensor]) -> None:
    """Errors: ValueError."""
    for tensor in tensors:
        if not is_aligned(tensor):
            raise ValueError(
                f"{operation}: a tensor of shape {list(tensor.shape)} with strides {list(tensor.stride())} begins at "
                f"{tensor.data_ptr():#x}; it and each of its rows must begin at multiples of {ALIGNMENT} bytes"
            )

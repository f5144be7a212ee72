"""The product of a mixture of experts for many rows on a GPU: by the grouped product of quack-kernels, or by torch's.

Rounding: that of the reference: sums in float32, one rounding at the end; the gated activation is computed of the
float32 sums. Experts without rows cost nothing. Rows of x may be those of an expert already (`moe_dispatch`), or be
found by the number of the token that each row is (`src_token`), which spares their copy.
"""

from __future__ import annotations

from functools import partial

from optimized.arguments import HALVES, INT32, output, require, sizes_of
from optimized.device import Outline, Tensor, device_of, dtype_of, libraries_take
from optimized.kernels.linear_many_rows import (
    gated_outputs,
    gemm_kernel,
    other_tiles,
    require_aligned,
    usual_choice,
)
from optimized.kernels.linear_many_rows_gemm import Tiling, fits_tiling, generation_of
from optimized.tuned import QUACK, TORCH, run_choice, tuned_for


def grouped_linear_many_rows(
    x: Tensor,  # [R, K], rows contiguous; [T, K] with src_token
    weight: Tensor,  # [E, N, K], rows contiguous; gate above up if there is an activation
    expert_offsets: Tensor,  # i32 [E + 1]
    src_token: Tensor | None = None,  # i32 [R]: the row of x that each row is; none of an expert's may be -1
    *,
    activation: str | None = None,  # "silu": out = silu(x Wg^T) * (x Wu^T)
    choice: str | None = None,  # "torch", or "quack TILING"; None: the fastest that was measured
    invariant: bool = False,
    out: Tensor | None = None,  # [R, N], or [R, N / 2] if there is an activation
) -> Tensor:  # out, or new memory; x's dtype
    """out[row] = x[row] W[e]^T for the rows expert_offsets[e] .. expert_offsets[e + 1] - 1 of each expert e.
    Rows beyond the last expert are not written, but by torch, which takes no `out`.

    invariant: as for `linear_many_rows`.
    Errors: ValueError for a choice that cannot do it; ValueError, TypeError for tensors that do not fit.
    """
    name = "grouped_linear_many_rows"
    device = device_of(x)
    num_rows, channels = sizes_of(name, "x", x, ("R", "K"), HALVES)
    num_experts, features, _ = sizes_of(name, "weight", weight, ("E", "N", "K"), HALVES)
    dtype = dtype_of(x)
    require(name, "weight", weight, (num_experts, features, channels), (dtype,))
    require(name, "expert_offsets", expert_offsets, (num_experts + 1,), INT32)
    if src_token is not None:
        (num_rows,) = sizes_of(name, "src_token", src_token, ("R",), INT32)
    outputs = features if activation is None else gated_outputs(name, features, activation)
    is_gated, gathers = activation is not None, src_token is not None
    by_torch = not (is_gated or gathers or invariant) and out is None and libraries_take(x)
    if choice is None:
        operation = "grouped_gated_linear" if is_gated else "grouped_linear"
        sizes = num_experts, features, channels
        ranked = tuned_for(device, x).ranked(operation, sizes, dtype, max(1, num_rows), invariant=invariant)
        can_torch = by_torch and dtype == "bfloat16" and num_rows > 0
        able = (
            one
            for one in ranked
            if (can_torch if one == TORCH else _tiles_can(one, generation_of(device.arch), is_gated, gathers))
        )
        choice = next(able, None) or usual_choice(device)
    if choice == TORCH:
        if not by_torch:
            raise ValueError(
                f"{name}: torch neither gathers nor gates, is not invariant, takes no out, and computes with its own "
                "tensors alone"
            )
        if dtype != "bfloat16":
            raise ValueError(f"{name}: torch's grouped product is of bfloat16; these are {dtype}")
        if num_rows == 0 or isinstance(x, Outline):  # of which there is nothing to launch
            return device.empty((num_rows, outputs), dtype)
        return _by_torch(x, weight, expert_offsets)
    out = output(name, "out", out, device, (num_rows, outputs), dtype)
    if num_rows > 0 and x.shape[0] > 0:
        require_aligned(name, [x, weight, out])
        kernel = gemm_kernel(device, choice, dtype, is_gated=is_gated, is_grouped=True, gathers=gathers)
        instead = partial(other_tiles, device, choice, is_gated=is_gated, gathers=gathers)
        run_choice(device, name, choice, instead, kernel, x, weight, None, None, expert_offsets, src_token, out)
    return out


def _tiles_can(choice: str, generation: int, is_gated: bool, gathers: bool) -> bool:
    library, _, text = choice.partition(" ")
    return library == QUACK and fits_tiling(Tiling.parse(text), generation, is_gated=is_gated, gathers=gathers)


def _by_torch(x: Tensor, weight: Tensor, expert_offsets: Tensor) -> Tensor:
    """In memory of its own, of which rows beyond the last expert are anything."""
    import torch

    return torch._grouped_mm(x, weight.transpose(-2, -1), offs=expert_offsets[1:])

"""How a product of a router's choice is launched: pure functions of shapes and chip, apart from `few_rows_routed`."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from optimized.compile.launch_policy import WARP
from optimized.device import Device, Tensor, dtype_of
from optimized.kernels.few_rows_grouped_launch import MAX_EXPERTS, chunk_tiles, grouped_tiles_of, stages_of
from optimized.kernels.few_rows_launch import WARPS, FewRowsLaunch, access_of, strides_of
from optimized.kernels.few_rows_routed import MOST_PAIRS


def require_few_pairs(operation: str, num_tokens: int, per_token: int) -> None:
    if num_tokens * per_token > MOST_PAIRS:
        raise ValueError(
            f"{operation}: {num_tokens} tokens of {per_token} experts are {num_tokens * per_token} pairs; up to "
            f"{MOST_PAIRS} are routed here: see `moe_dispatch`"
        )


def routed_bytes(num_experts: int, most_rows: int) -> int:
    """Of shared memory, for what `list_pairs` makes."""
    return 8 * (num_experts + MOST_PAIRS // most_rows) + 4 * (WARPS + num_experts + MOST_PAIRS)


def routed_constants(
    operation: str,
    device: Device,
    x: Tensor,
    weight: Tensor,
    expert_ids: Tensor,
    experts_of_all: int | None,
    *,
    parts: int = 1,
    tiles: int | None = None,
    pdl: bool,
) -> tuple[Any, ...]:
    """Of a `RoutedFewRows`, in order, whose inputs are checked. experts_of_all: of which the router chooses. tiles: as
    for grouped products if None. Errors: ValueError for more experts than can be sorted by, none, or more than of all.

    Of a token alone each chunk is one row: so there is room for all of them, even if one expert has them all."""
    num_experts, features, in_features = weight.shape
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"{operation} takes 1 to {MAX_EXPERTS} experts; these are {num_experts}")
    if experts_of_all is not None and experts_of_all < num_experts:
        raise ValueError(
            f"{operation}: experts_of_all is {experts_of_all}; the router chooses of these {num_experts} at least"
        )
    num_tokens, per_token = expert_ids.shape
    expert_stride, weight_stride = strides_of(weight)
    out_features = features // parts
    is_alone = num_tokens == 1 and per_token <= WARP
    row_tiles = 1 if is_alone else chunk_tiles(num_tokens * per_token, experts_of_all or num_experts)
    tiles = tiles or grouped_tiles_of(device.num_sms, num_experts, out_features, parts)
    stages = stages_of(device.arch, tiles, row_tiles, routed_bytes(num_experts, 8 * row_tiles))
    launch = FewRowsLaunch(row_tiles, tiles, stages, device.num_sms)
    shape = in_features, out_features, dtype_of(x), weight_stride, access_of(weight), access_of(x)
    return *shape, *astuple(launch), bool(pdl), num_experts, expert_stride, per_token, is_alone

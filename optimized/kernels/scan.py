"""Sums of the numbers of lanes before."""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.launch_policy import WARP


@cute.jit
def sum_up_to_lane(value: cutlass.Int32) -> cutlass.Int32:
    """The sum of a warp's values up to this lane's own. Every lane must call it."""
    lane = cute.arch.lane_idx()
    total = value
    for exponent in range_constexpr(WARP.bit_length() - 1):
        below = cute.arch.shuffle_sync_up(total, 1 << exponent, mask_and_clamp=0)
        if lane >= (1 << exponent):
            total += below
    return total

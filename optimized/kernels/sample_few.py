"""Sampling from the few tokens that a small top-k leaves: the rest of the chain, by one warp.

Lane i has the tokens number i and 32 + i of the falling order.
"""

from __future__ import annotations

import cutlass
from cutlass import cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.ordered import entry_of, id_of_entry, largest_of_warp, value_of_entry
from optimized.kernels.philox import NoiseOf, gumbel, words_of_token
from optimized.kernels.precise import exp_of_negative

FEW = 64  # tokens
_EACH = FEW // WARP

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


@cute.jit
def sum_up_to(value: cutlass.Float32) -> cutlass.Float32:
    """The sum over the lanes up to and with this one."""
    lane = cute.arch.lane_idx()
    for i in range_constexpr(5):
        other = cute.arch.shuffle_sync_up(value, 1 << i, mask_and_clamp=0)
        value += other if lane >= 1 << i else f32(0.0)
    return value


@cute.jit
def draw_of_few(
    sOrdered: cute.Tensor,  # u64 [FEW], in falling order
    count: cutlass.Int32,  # of them that there are, 1 or more
    top_p: cutlass.Float32,
    min_p: cutlass.Float32,
    noise: NoiseOf,
) -> cutlass.Int32:
    """A token of those that top-p and min-p keep, in every lane of the warp that calls it. Entries are of finite
    numbers, or of -infinity."""
    lane = cute.arch.lane_idx()
    top = value_of_entry(sOrdered[0])
    rValue = cute.make_rmem_tensor((_EACH,), f32)
    rShare = cute.make_rmem_tensor((_EACH,), f32)  # proportional to the probability
    rId = cute.make_rmem_tensor((_EACH,), i32)
    rBefore = cute.make_rmem_tensor((_EACH,), f32)  # sum of the shares that precede
    total = f32(0.0)
    for i in range_constexpr(_EACH):
        place = i * WARP + lane
        entry = sOrdered[place if place < count else 0]
        rValue[i] = value_of_entry(entry) if place < count else -f32.inf
        rId[i] = id_of_entry(entry)
        rShare[i] = exp_of_negative(rValue[i] - top)
        up_to = sum_up_to(rShare[i])
        before = cute.arch.shuffle_sync_up(up_to, 1, mask_and_clamp=0)
        rBefore[i] = total + (before if lane > 0 else f32(0.0))
        total += cute.arch.shuffle_sync(up_to, WARP - 1)
    best = u64(0)
    for i in range_constexpr(_EACH):
        is_first = lane == 0 if i == 0 else cutlass.Boolean(False)
        is_kept = is_first or top_p >= 1.0 or rBefore[i] < top_p * total
        if rValue[i] > -f32.inf and rShare[i] >= min_p and is_kept:
            token = rId[i]
            words = words_of_token(noise, token)
            word = words[0] if token % 4 == 0 else words[1]
            word = words[2] if token % 4 == 2 else word
            word = words[3] if token % 4 == 3 else word
            entry = entry_of(rValue[i] + gumbel(word), token)
            best = entry if entry > best else best
    return id_of_entry(largest_of_warp(best))

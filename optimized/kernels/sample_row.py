"""What all ways to sample begin with: the temperature, what may not be sampled, and whether a row is usable."""

from __future__ import annotations

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.kernels.forbidden import strike_out
from optimized.kernels.ordered import KEY_OF_INFINITY, KEY_OF_MINUS_INFINITY, key_of
from optimized.kernels.row_cluster import THREADS, heard_count, meet, tell

LOWEST_TEMPERATURE = 1e-6  # the reference's limits
LARGEST_TEMPERATURE = 2.0**64

u32 = cutlass.Uint32
f32 = cutlass.Float32
i32 = cutlass.Int32


@cute.jit
def divisor_of(temperature: cutlass.Float32) -> cutlass.Float32:
    """What logits are divided by: 1 for a greedy row."""
    divisor = cute.arch.fmin(cute.arch.fmax(temperature, f32(LOWEST_TEMPERATURE)), f32(LARGEST_TEMPERATURE))
    return f32(1.0) if temperature == 0.0 else divisor


@cute.jit
def rule_out(
    rValues: cute.Tensor,  # f32 [vector] in registers
    sForbidden: cute.Tensor | None,  # u32 [slice / BITS]
    place: cutlass.Int32,  # in the slice, of the first value
    allowed: cutlass.Int32,  # places below it are no padding of the vocabulary
    row: cutlass.Constexpr,
) -> None:
    """Values of tokens that must not be sampled become -infinity: of the vocabulary's padding, and forbidden ones."""
    strike_out_padding(rValues, place, allowed)
    if const_expr(row.forbids):
        strike_out(rValues, sForbidden, place)


@cute.jit
def strike_out_padding(rValues: cute.Tensor, place: cutlass.Int32, allowed: cutlass.Int32) -> None:
    """See `rule_out`."""
    if place + cute.size(rValues) > allowed:
        for e in range_constexpr(cute.size(rValues)):
            rValues[e] = rValues[e] if place + e < allowed else -f32.inf


@cute.jit
def raw_key(raw: cutlass.Float32) -> cutlass.Uint32:
    """Of a largest logit, so that the largest of keys says whether a row is usable: a NaN counts as infinity."""
    is_nan = (raw.bitcast(u32) & u32(0x7FFFFFFF)) > u32(0x7F800000)
    return u32(KEY_OF_INFINITY) if is_nan else key_of(raw)


@cute.jit
def is_finite_key(key: cutlass.Uint32) -> cutlass.Boolean:
    """Of the keys that are not those of NaN."""
    return key > u32(KEY_OF_MINUS_INFINITY) and key < u32(KEY_OF_INFINITY)


@cute.jit
def look_again(
    mRow: cute.Tensor,  # f32 [V]
    mTurned: cute.Tensor,  # i32 [R, 2]: how many finite logits `adjust_logits` made NaN or +infinity, and -infinity
    request: cutlass.Int32,
    first: cutlass.Int32,  # id of the block's first element
    sInfinite: cute.Tensor,  # u32 [cluster * WARPS]
    sNan: cute.Tensor,  # u32 [cluster * WARPS]
    row: cutlass.Constexpr,  # the kernel
) -> tuple[cutlass.Boolean, cutlass.Boolean]:
    """Of a row whose largest logit is not finite: was it, before logits were adjusted? And is any of them NaN now?

    It was if every NaN and every +infinity has been made by the adjustment, and it has made any, or a -infinity. Every
    thread of the cluster must call it; slots can be told anew after it.
    """
    thread, _, _ = cute.arch.thread_idx()
    infinite, nan = i32(0), i32(0)
    for i in cutlass.range(first + thread, cutlass.min(first + row.slice, row.row_length), THREADS, unroll=1):
        bits = mRow[i].bitcast(u32)
        infinite += i32(1) if bits == u32(0x7F800000) else i32(0)
        nan += i32(1) if (bits & u32(0x7FFFFFFF)) > u32(0x7F800000) else i32(0)
    tell(sInfinite, cute.arch.warp_redux_sync(u32(infinite), "add"), row)
    tell(sNan, cute.arch.warp_redux_sync(u32(nan), "add"), row)
    meet(row)
    infinite, nan = i32(heard_count(sInfinite, row)), i32(heard_count(sNan, row))
    meet(row)
    above, below = mTurned[request, 0], mTurned[request, 1]
    return infinite + nan == above and above + below > 0, nan > 0

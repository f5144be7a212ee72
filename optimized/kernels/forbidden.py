"""Which tokens of a block's slice must not be sampled, as bits in shared memory: those that a mask does not allow, and
those that are banned one by one."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import cute

from optimized.arguments import INT32, UINT32, require, sizes_of
from optimized.device import Tensor
from optimized.kernels.any_strides import any_strides
from optimized.kernels.rows import vector_of

BITS = 32  # of a word; the lowest bit is of the lowest id

u32 = cutlass.Uint32
i32 = cutlass.Int32


class Forbidden(NamedTuple):
    """What requests forbid."""

    mBanned: cute.Tensor  # i32 [R, N]; negative ids are padding
    mMask: cute.Tensor  # u32 [M, W]: allowed ids; those beyond it are not
    mMaskRow: cute.Tensor  # i32 [R]; a negative one allows all


def forbidden_arguments(num_rows: Any) -> tuple[Any, Any, Any]:
    """Fake tensors."""
    banned, mask = any_strides("int32", num_rows, cute.sym_int()), any_strides("uint32", cute.sym_int(), cute.sym_int())
    return banned, mask, vector_of("int32", num_rows)


def check_forbidden(operation: str, num_rows: int, banned_ids: Tensor, mask: Tensor, mask_row: Tensor) -> bool:
    """Is there a mask or a ban? Errors: ValueError, TypeError for tensors that do not fit."""
    _, width = sizes_of(operation, "banned_ids", banned_ids, ("R", "N"), INT32, may_be_empty=True)
    require(operation, "banned_ids", banned_ids, (num_rows, width), INT32)
    num_masks, _ = sizes_of(operation, "mask", mask, ("M", "W"), UINT32, may_be_empty=True)
    require(operation, "mask_row", mask_row, (num_rows,), INT32)
    return num_masks > 0 or width > 0


@cute.jit
def forbid(
    of: Forbidden,
    request: cutlass.Int32,
    first: cutlass.Int32,  # id of the block's first element, a multiple of BITS
    sForbidden: cute.Tensor,  # u32 [slice / BITS]
    threads: cutlass.Constexpr,  # of the block
) -> None:
    """Every thread of the block must call it."""
    thread, _, _ = cute.arch.thread_idx()
    mask_row = of.mMaskRow[request]
    words = cute.size(sForbidden)
    for i in cutlass.range(thread, words, threads, unroll=1):
        word = u32(0)
        if mask_row >= 0:
            number = first // BITS + i
            word = u32(0xFFFFFFFF)
            if number < of.mMask.shape[1]:
                word = ~of.mMask[mask_row, number]
        sForbidden[i] = word
    cute.arch.sync_threads()
    for i in cutlass.range(thread, of.mBanned.shape[1], threads, unroll=1):
        place = of.mBanned[request, i] - first
        if place >= 0 and place < words * BITS:
            bit = u32(1) << u32(place % BITS)
            cute.arch.atomic_or(sForbidden.iterator + place // BITS, bit, sem="relaxed", scope="cta")
    cute.arch.sync_threads()


@cute.jit
def strike_out(
    rValues: cute.Tensor,  # f32 [n] in registers: elements from `place` on
    sForbidden: cute.Tensor,  # u32 [slice / BITS]
    place: cutlass.Int32,  # in the slice, a multiple of n, which divides BITS
) -> None:
    """Forbidden elements become -infinity."""
    word = sForbidden[place // BITS] >> u32(place % BITS)
    for e in cutlass.range_constexpr(cute.size(rValues)):
        rValues[e] = -cutlass.Float32.inf if (word >> u32(e)) & u32(1) == u32(1) else rValues[e]

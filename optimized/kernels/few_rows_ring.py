"""The ring of `few_rows`: how a warp's part of weights and x comes to shared memory, and where it lies there.

A stage holds 128 bytes of each row: of the unit's rows of the weight, of rows of x, and (for a norm) of its weight. Of
odd rows the two halves are exchanged. So the 16 bytes at 16 t of rows g and g + 1, which eight lanes read at once, lie
in different banks; and a lane's 16 bytes are the fragments of two products, under one permutation of k that both
factors share. No other layout is needed, and no ldmatrix.

Step s of a warp is chunk `warps * s + warp` of its rows. A unit begins at a step that its number chooses, and goes
around: so blocks do not all want the same lines of x at once. What lies behind the end of a row, or behind the last
row of the weight, is 0; rows of x that do not exist are not copied, and read nowhere."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.compile.launch_policy import WARP
from optimized.kernels.few_rows_launch import CHUNK_BYTES, WARPS
from optimized.ptx.cp_async import copy_async
from optimized.ptx.words import load_global_half, store_shared_word

_MOST_OFFSET = 1 << 23  # what an instruction has room for


class Source(NamedTuple):
    """What a lane copies next, and to which stage. In registers."""

    rNext: cute.Tensor  # i32 [4]: the unit, steps done of it, the step that is next, the stage's byte in the ring
    rUnit: cute.Tensor  # of the unit, as `FewRows.describe` says
    rWeight: cute.Tensor  # i64 [parts], see `FewRows.point`
    rX: cute.Tensor  # i64 [x_words]


def new_source(kernel: Any) -> Source:
    return Source(
        cute.make_rmem_tensor((4,), cutlass.Int32),
        cute.make_rmem_tensor((kernel.unit_words,), cutlass.Int32),
        cute.make_rmem_tensor((kernel.parts,), cutlass.Int64),
        cute.make_rmem_tensor((kernel.x_words,), cutlass.Int64),
    )


def lanes_per_row(access: int) -> int:
    """Lanes that copy one row of a stage, each with one access of at least a word."""
    return CHUNK_BYTES // max(access, 4)


def rows_at_once(access: int) -> int:
    """Rows that a warp copies at once: 1, 2 or 4."""
    return WARP // lanes_per_row(access)


def lane_place(access: int) -> tuple[Any, Any]:
    """Which row of `rows_at_once`, and which byte of it, this lane copies."""
    lane, lanes = cute.arch.lane_idx(), lanes_per_row(access)
    return lane // lanes, lane % lanes * max(access, 4)


def _places(row: Any, byte: Any) -> list[Any]:
    """Where that is in a stage, behind rows that end at an even one, and at an odd one."""
    return [row * CHUNK_BYTES + (byte ^ ((row + parity) % 2 * (CHUNK_BYTES // 2))) for parity in range(2)]


def _behind(address: cutlass.Int64, offset: int) -> tuple[cutlass.Int64, int]:
    """A place as register and the offset that an instruction holds."""
    return (address, offset) if offset < _MOST_OFFSET else (address + cutlass.Int64(offset), 0)


@cute.jit
def begin_source(kernel: cutlass.Constexpr, operands: Any, ahead: Source, units: cutlass.Int32) -> None:
    """At the block's first unit, and the first stage."""
    block, _, _ = cute.arch.block_idx()
    ahead.rNext[0], ahead.rNext[3] = block, cutlass.Int32(0)
    ahead.rUnit.fill(0)
    ahead.rWeight.fill(0)
    ahead.rX.fill(0)
    _begin_unit(kernel, operands, ahead, units)


@cute.jit
def _begin_unit(kernel: cutlass.Constexpr, operands: Any, ahead: Source, units: cutlass.Int32) -> None:
    ahead.rNext[1] = cutlass.Int32(0)
    if ahead.rNext[0] < units:
        kernel.describe(operands, ahead.rNext[0], ahead.rUnit)
        kernel.point(operands, ahead.rUnit, ahead.rWeight, ahead.rX)
    ahead.rNext[2] = ahead.rUnit[0] // kernel.part_rows % kernel.steps


@cute.jit
def stage_next(
    kernel: cutlass.Constexpr,
    operands: Any,
    ahead: Source,
    ring: cutlass.Int32,  # address of the warp's
    units: cutlass.Int32,
    what: cutlass.Constexpr[Literal["weights", "x", "both"]],
) -> None:
    """Start the copies of the next stage, if there is one, as one group, and go on to the one after it."""
    rNext = ahead.rNext
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if rNext[0] < units:
        first, stage = (rNext[2] * WARPS + warp) * CHUNK_BYTES, ring + rNext[3]
        if const_expr(what != "x"):
            _stage_weights(kernel, ahead.rWeight, kernel.out_features - ahead.rUnit[0], first, stage)
            if const_expr(kernel.has_norm):
                _stage_norm_weight(kernel, kernel.norm_weight_of(operands), first, stage)
        if const_expr(what != "weights"):
            _stage_x(kernel, ahead.rX, ahead.rUnit[1], first, stage)
        rNext[1] += 1
        rNext[2] = rNext[2] + 1 if rNext[2] + 1 < kernel.steps else cutlass.Int32(0)
        if rNext[1] == kernel.steps:
            grid, _, _ = cute.arch.grid_dim()
            rNext[0] += grid
            _begin_unit(kernel, operands, ahead, units)
    last = (kernel.stages - 1) * kernel.stage_bytes
    rNext[3] = rNext[3] + kernel.stage_bytes if rNext[3] < last else cutlass.Int32(0)
    cute.arch.cp_async_commit_group()


@cute.jit
def _stage_weights(
    kernel: cutlass.Constexpr,
    rWeight: cute.Tensor,
    rows_left: cutlass.Int32,  # of each part, from the unit's first on
    first: cutlass.Int32,  # byte of a row
    stage: cutlass.Int32,  # address
) -> None:
    access, rows = kernel.weight_access, rows_at_once(kernel.weight_access)
    row, byte = lane_place(access)
    places = _places(row, byte)
    for begin in range_constexpr(0, 16 * kernel.tiles, rows):
        part, number = kernel.row_of_part(begin)
        remaining = None
        if const_expr(kernel.has_k_tail or kernel.has_n_tail):
            remaining = cutlass.Int32(kernel.bytes_of_row) - first - byte
            if number + row >= rows_left:
                remaining = cutlass.Int32(0)
        source = _behind(rWeight[part] + cutlass.Int64(first), number * kernel.weight_stride * kernel.itemsize)
        _copy(access, stage + places[begin % 2], begin * CHUNK_BYTES, *source, remaining, None, True)


@cute.jit
def _stage_norm_weight(
    kernel: cutlass.Constexpr, mNormWeight: cute.Tensor, first: cutlass.Int32, stage: cutlass.Int32
) -> None:
    """By the lanes that copy a first row."""
    row, byte = lane_place(kernel.weight_access)
    remaining = cutlass.Int32(kernel.bytes_of_row) - first - byte if const_expr(kernel.has_k_tail) else None
    source = mNormWeight.iterator.toint() + cutlass.Int64(first + byte)
    _copy(kernel.weight_access, stage + byte, kernel.norm_begin, source, 0, remaining, row == 0, False)


@cute.jit
def _stage_x(
    kernel: cutlass.Constexpr,
    rX: cute.Tensor,
    num_rows: cutlass.Int32,
    first: cutlass.Int32,
    stage: cutlass.Int32,
) -> None:
    access, rows = kernel.x_access, rows_at_once(kernel.x_access)
    row, byte = lane_place(access)
    places = _places(row, byte)
    remaining = cutlass.Int32(kernel.bytes_of_row) - first - byte if const_expr(kernel.has_k_tail) else None
    for i in range_constexpr(kernel.x_accesses):
        begin, to_offset = i * rows, kernel.x_begin + i * rows * CHUNK_BYTES
        address, offset = kernel.x_source(rX, i)
        source = _behind(address + cutlass.Int64(first), offset)
        _copy(access, stage + places[begin % 2], to_offset, *source, remaining, begin + row < num_rows, True)


@cute.jit
def _copy(
    access: cutlass.Constexpr,
    to: cutlass.Int32,
    to_offset: cutlass.Constexpr,
    source: cutlass.Int64,
    source_offset: cutlass.Constexpr,
    remaining: Any,  # i32, bytes there are from the source on, a multiple of an access; the rest is 0. None: enough
    predicate: Any,  # false for a lane that has nothing to copy; None: all have
    fetch_ahead: cutlass.Constexpr,
) -> None:
    """One access; of two elements where it is narrower than a word, and those are loaded and stored."""
    if const_expr(access >= 4):
        valid = None
        if const_expr(remaining is not None):
            valid = cutlass.Int32(access) if remaining > 0 else cutlass.Int32(0)
        offsets = {"to_offset": to_offset, "source_offset": source_offset}
        copy_async(to, source, access, **offsets, valid=valid, predicate=predicate, fetch_ahead=fetch_ahead)
    else:
        halves = []
        for i in range_constexpr(2):
            is_read = cutlass.Boolean(True) if const_expr(predicate is None) else predicate
            if const_expr(remaining is not None):
                is_read = is_read and remaining > access * i
            halves.append(load_global_half(source, is_read, offset=source_offset + access * i))
        store_shared_word(to, halves[0] | (halves[1] << 16), offset=to_offset, predicate=predicate)

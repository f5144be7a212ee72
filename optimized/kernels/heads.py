"""What kernels over the heads of tokens share: how heads are dealt to threads, and a lane's part of a head.

A head of D elements is held by a few neighbouring lanes of one warp: its group. Access i of a lane is number
lane + i * lanes of the head's accesses of `vector` elements; their number a lane is even, so that the lane that holds
channel c holds channel c + D/2 too, and a rotary embedding needs no shuffle. A group takes up to `heads` heads of one
token and one kind (q, k or v): all are loaded before the first is computed, so that many loads are in flight.

Every kernel here deals a head out in the same way, so its squares are added up in the same order: qk_norm gives the
same bits alone and fused.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import gcd
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.launch_policy import WARP
from optimized.kernels.rows import DTYPES, itemsize

_MAX_LANES = WARP // 2  # a half-warp or less holds a head: four shuffles at most add up its squares
_BYTES_IN_FLIGHT = 64  # that a lane loads before it computes, where there is work for all threads of the chip
_THREADS_PER_SM = 2048


@dataclass(frozen=True, kw_only=True)
class HeadLaunch:
    """How heads are dealt to threads. A kernel over heads is one of these, so they are among its constants."""

    vector: int  # elements of one access
    vectors: int  # accesses of a lane, to cover a head
    lanes: int  # of a group: a power of two
    heads: int  # of a group
    warps: int  # of a block

    def parts(self, num_heads: int) -> int:
        """Groups that heads of one kind of a token go to."""
        return -(-num_heads // self.heads)


def head_launch(
    num_sms: int, num_tokens: int, kinds: tuple[int, ...], *, head_dim: int, itemsize: int, vector: int
) -> HeadLaunch:
    """One head a group and 4 warps a block; several heads a group (prefill), once those groups fill the chip twice, and
    2 warps a block, because such threads hold many registers.

    kinds: heads of q, of k ... of a token. vector: divides head_dim / 2. Errors: ValueError for an odd head_dim.
    """
    require_even("a kernel over heads", head_dim)
    lanes = gcd(_MAX_LANES, head_dim // 2 // vector)
    vectors = head_dim // vector // lanes

    def launch(heads: int, warps: int) -> HeadLaunch:
        return HeadLaunch(vector=vector, vectors=vectors, lanes=lanes, heads=heads, warps=warps)

    def threads(launch: HeadLaunch) -> int:
        return num_tokens * sum(map(launch.parts, kinds)) * lanes

    some = launch(1, 4)
    many = launch(max(1, min(_BYTES_IN_FLIGHT // (vector * vectors * itemsize), max(kinds))), 2)
    return many if threads(many) >= 2 * num_sms * _THREADS_PER_SM else some


def require_even(operation: str, head_dim: int) -> None:
    """Errors: ValueError."""
    if head_dim % 2:
        raise ValueError(f"{operation}: a head has two halves; one of {head_dim} channels has not")


def heads_of(dtype: str, num_tokens: Any, num_heads: int, head_dim: int, vector: int) -> Any:
    """A fake tensor [num_tokens, num_heads, head_dim]: a token's heads are contiguous, and begin at a multiple of an
    access. It may be a slice of q, k and v side by side, whose tokens lie more than 2^31 elements apart in all."""
    stride = cute.sym_int64(divisibility=vector)
    return make_fake_tensor(
        DTYPES[dtype],
        (num_tokens, num_heads, head_dim),
        (stride, head_dim, 1),
        assumed_align=vector * itemsize(dtype),
    )


@cute.jit
def place(
    warps: cutlass.Constexpr,  # of a block
    lanes: cutlass.Constexpr,  # of a group
    parts: cutlass.Constexpr,  # of a token
) -> tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]:
    """(token, part, lane) of this thread. Divided without a sign: fewer instructions."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    thread, block = cutlass.Uint32(thread), cutlass.Uint32(block)
    group = block * (warps * WARP // lanes) + thread // lanes
    return cutlass.Int32(group // parts), cutlass.Int32(group % parts), cutlass.Int32(thread % lanes)


@cute.jit
def load_heads(
    mX: cute.Tensor,  # [N, D], the heads of one kind of a token
    rX: cute.Tensor,  # [vector, vectors, heads] in registers
    first: cutlass.Int32,  # the group's first head
    lane: cutlass.Int32,
    lanes: cutlass.Constexpr,
) -> None:
    """A lane's part of its group's heads. Beyond the last head, registers stay as they are."""
    heads = rX.shape[2]
    for j in range_constexpr(heads):
        if const_expr(mX.shape[0] % heads == 0):
            load_head(mX[first + j, None], rX[None, None, j], lane, lanes)
        else:  # noqa: PLR5501, the outer condition is of compile time
            if first + j < mX.shape[0]:
                load_head(mX[first + j, None], rX[None, None, j], lane, lanes)


@cute.jit
def load_head(
    mX: cute.Tensor,  # [D]
    rX: cute.Tensor,  # [vector, vectors] in registers
    lane: cutlass.Int32,
    lanes: cutlass.Constexpr,
) -> None:
    """A lane's part of one head, or of a weight or table of that length."""
    vector, vectors = rX.shape
    gX = cute.zipped_divide(mX, (vector,))
    for i in range_constexpr(vectors):
        cute.autovec_copy(gX[None, lane + i * lanes], rX[None, i])


@cute.jit
def store_heads(
    rX: cute.Tensor,  # [vector, vectors, heads] in registers
    mX: cute.Tensor,  # [N, D]
    first: cutlass.Int32,
    lane: cutlass.Int32,
    lanes: cutlass.Constexpr,
) -> None:
    """What `load_heads` reads, written."""
    vector, vectors, heads = rX.shape
    for j in range_constexpr(heads):
        gX = cute.zipped_divide(mX[first + j, None], (vector,))
        for i in range_constexpr(vectors):
            if const_expr(mX.shape[0] % heads == 0):
                cute.autovec_copy(rX[None, i, j], gX[None, lane + i * lanes])
            else:  # noqa: PLR5501, the outer condition is of compile time
                if first + j < mX.shape[0]:
                    cute.autovec_copy(rX[None, i, j], gX[None, lane + i * lanes])


@cute.jit
def norm_heads(
    rX: cute.Tensor,  # [vector, vectors, heads] in registers
    rWeight: cute.Tensor,  # [vector, vectors] in registers
    rOut: cute.Tensor,  # [vector, vectors, heads] in registers; may be rX
    lanes: cutlass.Constexpr,
    eps: cutlass.Constexpr,
    weight_bias: cutlass.Constexpr,
) -> None:
    """Each head by itself, rounded once. Every thread of a warp must call it: the sum over a head's lanes is a
    butterfly of shuffles, and has the same bits in each of them."""
    vector, vectors, heads = rX.shape
    weight = rWeight.load().to(cutlass.Float32)
    if const_expr(weight_bias != 0.0):
        weight = weight + weight_bias
    for j in range_constexpr(heads):
        x = rX[None, None, j].load().to(cutlass.Float32)
        squares = (x * x).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
        total = cute.arch.warp_reduction(squares, operator.add, threads_in_group=lanes)
        scale = cute.math.rsqrt(total * (1.0 / (vector * vectors * lanes)) + eps)
        rOut[None, None, j].store((x * scale * weight).to(rOut.element_type))

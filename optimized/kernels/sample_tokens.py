"""Sampling on a GPU: from logits to tokens in one launch, a row read once into the shared memory of a cluster.

What a row's parameters ask for decides which way it takes; what rows take none of (`draws`, `limits`) is left out of
the kernel. Which way is taken, and in which order anything is added up, never depends on other rows: a row's token is
the same alone and in any company.

- Greedy: the largest, the lowest id on a tie.
- Top-k up to FEW: the largest are gathered, and one warp does the rest.
- No limit but min-p: all tokens are perturbed, and the largest is found.
- Any other top-k or top-p: the last token that is kept is found, by digits; then as before.

Rounding: what is compared is rounded as in the reference (penalised logits, quotients by the temperature, perturbed
logits); sums of probabilities are added up in another order, and the noise's logarithms err by an ULP. So a draw within
a few ULPs of a tie, or of where top-p or min-p ends, may be another than the reference's.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute

from optimized.arguments import FLOAT32, INT32, UINT32, output, require, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of
from optimized.kernels.any_strides import any_strides
from optimized.kernels.forbidden import Forbidden, check_forbidden, forbid, forbidden_arguments
from optimized.kernels.greedy_tokens import GreedyTokens
from optimized.kernels.largest import BINS
from optimized.kernels.ordered import key_of, value_of
from optimized.kernels.philox import NoiseOf
from optimized.kernels.row_cluster import (
    THREADS,
    RowCluster,
    arrive,
    check_length,
    heard_max,
    meet,
    tell,
    wait_for_all,
)
from optimized.kernels.rows import common_vector, rows_of, vector_of
from optimized.kernels.sample_few import FEW
from optimized.kernels.sample_memory import SampleMemory, sample_memory
from optimized.kernels.sample_row import divisor_of, is_finite_key, look_again, raw_key, read_slice
from optimized.kernels.sample_ways import Tops, Wish, sample_all, sample_few, sample_greedily
from reference.serving.runner import NOT_SAMPLED, NOTHING_ALLOWED, UNUSABLE_LOGITS

LIMITS = ("none", "few", "any")

u32 = cutlass.Uint32
f32 = cutlass.Float32


@dataclass(frozen=True)
class SampleTokens(RowCluster, Kernel):
    """One token a row."""

    row_length: int
    vector: int
    forbids: bool  # is there a mask or a ban?
    adjusted: bool  # are there logits that `adjust_logits` may have turned into infinities?
    limits: str  # of LIMITS

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        logits = rows_of("float32", num_rows, self.row_length, self.vector)
        temperature, top_p, min_p = (vector_of("float32", num_rows) for _ in range(3))
        top_k, position, sample_index, out = (vector_of("int32", num_rows) for _ in range(4))
        settings = temperature, top_k, top_p, min_p, any_strides("uint32", num_rows, 2), position, sample_index
        turned = any_strides("int32", num_rows, cute.sym_int())
        return logits, *settings, *forbidden_arguments(num_rows), turned, cutlass.Int32(1), out

    @cute.jit
    def __call__(
        self,
        mLogits: cute.Tensor,  # f32 [R, V]
        mTemperature: cute.Tensor,  # f32 [R]
        mTopK: cute.Tensor,  # i32 [R]
        mTopP: cute.Tensor,  # f32 [R]
        mMinP: cute.Tensor,  # f32 [R]
        mSeed: cute.Tensor,  # u32 [R, 2]
        mPosition: cute.Tensor,  # i32 [R]
        mSampleIndex: cute.Tensor,  # i32 [R]
        mBanned: cute.Tensor,  # i32 [R, N]
        mMask: cute.Tensor,  # u32 [M, W]
        mMaskRow: cute.Tensor,  # i32 [R]
        mTurned: cute.Tensor,  # i32 [R, 0 or 2]
        num_token_ids: cutlass.Int32,
        mTokenIds: cute.Tensor,  # i32 [R]
        stream: Any,
    ) -> None:
        settings = mTemperature, mTopK, mTopP, mMinP, mSeed, mPosition, mSampleIndex
        self.kernel(mLogits, *settings, mBanned, mMask, mMaskRow, mTurned, num_token_ids, mTokenIds).launch(
            grid=[mLogits.shape[0] * self.cluster, 1, 1],
            block=[THREADS, 1, 1],
            cluster=[self.cluster, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        mLogits: cute.Tensor,
        mTemperature: cute.Tensor,
        mTopK: cute.Tensor,
        mTopP: cute.Tensor,
        mMinP: cute.Tensor,
        mSeed: cute.Tensor,
        mPosition: cute.Tensor,
        mSampleIndex: cute.Tensor,
        mBanned: cute.Tensor,
        mMask: cute.Tensor,
        mMaskRow: cute.Tensor,
        mTurned: cute.Tensor,
        num_token_ids: cutlass.Int32,
        mTokenIds: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        request = block // self.cluster
        temperature = mTemperature[request]
        if temperature >= 0.0:
            seed = mSeed[request, 0], mSeed[request, 1]
            noise = NoiseOf(u32(mPosition[request]), u32(mSampleIndex[request]), *seed)
            wish = Wish(divisor_of(temperature), mTopK[request], mTopP[request], mMinP[request], noise)
            forbidden = Forbidden(mBanned, mMask, mMaskRow)
            of_row = mLogits[request, None], temperature == 0.0, wish, forbidden, mTurned, num_token_ids
            self.sample(*of_row, mTokenIds, request)
        elif block % self.cluster == 0 and thread == 0:
            mTokenIds[request] = NOT_SAMPLED

    @cute.jit
    def sample(
        self,
        mRow: cute.Tensor,  # f32 [V]
        is_greedy: cutlass.Boolean,
        wish: Wish,
        forbidden: Forbidden,
        mTurned: cute.Tensor,
        num_token_ids: cutlass.Int32,
        mTokenIds: cute.Tensor,
        request: cutlass.Int32,
    ) -> None:
        """One row."""
        thread, _, _ = cute.arch.thread_idx()
        rank = cute.arch.block_idx_in_cluster()
        first = rank * self.slice
        memory = sample_memory(self)
        self.begin(forbidden, request, first, memory)
        raw, own_top = read_slice(mRow, memory.sForbidden, first, num_token_ids, wish.divisor, memory.sRow, self)
        wait_for_all(self)  # they have their totals at 0
        tell(memory.sSlots[None, 0], cute.arch.warp_redux_sync(raw_key(raw), "max"), self)
        tell(memory.sSlots[None, 1], cute.arch.warp_redux_sync(key_of(own_top), "max"), self)
        meet(self)
        top_key = heard_max(memory.sSlots[None, 1], self)
        is_usable, has_token = is_finite_key(heard_max(memory.sSlots[None, 0], self)), is_finite_key(top_key)
        if const_expr(self.adjusted):  # noqa: SIM102, of compile time
            if not is_usable:
                slots = memory.sSlots[None, 4], memory.sSlots[None, 5]
                is_usable, has_nan = look_again(mRow, mTurned, request, first, *slots, self)
                has_token = has_token and not has_nan
        of = Tops(first, value_of(top_key), own_top)
        if not is_usable or not has_token:
            if rank == 0 and thread == 0:
                mTokenIds[request] = NOTHING_ALLOWED if is_usable else UNUSABLE_LOGITS
        elif is_greedy:
            sample_greedily(of, memory, mTokenIds, request, self)
        else:
            self.draw(of, wish, mRow, memory, mTokenIds, request)

    @cute.jit
    def draw(
        self,
        of: Tops,
        wish: Wish,
        mRow: cute.Tensor,
        memory: SampleMemory,
        mTokenIds: cute.Tensor,
        request: cutlass.Int32,
    ) -> None:
        """A row that is not greedy, and from which something can be drawn."""
        if const_expr(self.limits == "none"):
            sample_all(of, wish, mRow, memory, mTokenIds, request, self)
        else:
            is_limited = wish.top_k < self.row_length or wish.top_p < 1.0
            if is_limited and wish.top_k > 0 and wish.top_k <= FEW:
                sample_few(of, wish, memory, mTokenIds, request, self)
            else:
                sample_all(of, wish, mRow, memory, mTokenIds, request, self)

    @cute.jit
    def begin(self, forbidden: Forbidden, request: cutlass.Int32, first: cutlass.Int32, memory: SampleMemory) -> None:
        """What may be done before the row is read."""
        thread, _, _ = cute.arch.thread_idx()
        if thread < BINS:
            memory.sBins[thread], memory.sTotals[thread] = u32(0), u32(0)
        if thread == 0:
            memory.sCounts[0] = u32(0)
        if const_expr(self.forbids):
            forbid(forbidden, request, first, memory.sForbidden)
        arrive(self)


def sample_tokens(
    logits: Tensor,  # f32 [R, V], rows contiguous
    temperature: Tensor,  # f32 [R]: 0 is greedy; below 0, the row does not sample
    top_k: Tensor,  # i32 [R]; 0 keeps all
    top_p: Tensor,  # f32 [R], (0, 1]; 1 keeps all
    min_p: Tensor,  # f32 [R], [0, 1]; 0 keeps all
    seed: Tensor,  # u32 [R, 2], low word and high word of the 64-bit seed
    position: Tensor,  # i32 [R], where the drawn token will stand
    sample_index: Tensor,  # i32 [R]
    banned_ids: Tensor,  # i32 [R, N], -1 pads: never sampled
    mask: Tensor,  # u32 [M, W]: allowed ids, 32 a word, the lowest in the lowest bit; those beyond it are not
    mask_row: Tensor,  # i32 [R]: which row of `mask`; -1 allows all
    turned: Tensor,  # i32 [R, 2] of `adjust_logits`; [R, 0]: nothing was adjusted
    *,
    num_token_ids: int,  # ids from here on are padding of the vocabulary, and never sampled
    draws: bool = True,
    limits: str = "any",
    out: Tensor | None = None,
) -> Tensor:  # i32 [R]: `out`, or new memory
    """One token a row, or UNUSABLE_LOGITS, NOTHING_ALLOWED or NOT_SAMPLED.

    draws, limits: what the caller knows of all rows, so that less is compiled and looked at. They must hold; a row of
    which they do not is sampled as if it had asked for less. draws: is any temperature above 0? limits, of the rows
    that draw: "none" has top-k or top-p; those that do have a top-k of at most FEW ("few"); or "any".

    Errors: ValueError, TypeError for tensors that do not fit, for other limits, and for rows that are too long.
    """
    device = device_of(logits)
    num_rows, row_length = sizes_of("sample_tokens", "logits", logits, ("R", "V"), FLOAT32)
    if limits not in LIMITS:
        raise ValueError(f"sample_tokens: limits is {limits!r}; it must be one of {', '.join(LIMITS)}")
    check_length("sample_tokens", row_length)
    if not 1 <= num_token_ids <= row_length:
        raise ValueError(f"sample_tokens: num_token_ids is {num_token_ids}; it must be 1 to {row_length}")
    floats = {"temperature": temperature, "top_p": top_p, "min_p": min_p}
    integers = {"top_k": top_k, "position": position, "sample_index": sample_index}
    for dtypes, tensors in ((FLOAT32, floats), (INT32, integers)):
        for name, tensor in tensors.items():
            require("sample_tokens", name, tensor, (num_rows,), dtypes)
    require("sample_tokens", "seed", seed, (num_rows, 2), UINT32)
    forbids = check_forbidden("sample_tokens", num_rows, banned_ids, mask, mask_row)
    adjusted = tuple(turned.shape[1:]) != (0,)
    require("sample_tokens", "turned", turned, (num_rows, 2 if adjusted else 0), INT32)
    out = output("sample_tokens", "out", out, device, (num_rows,), "int32")
    if num_rows == 0:
        return out
    of_kernel = row_length, common_vector(device.arch, row_length, logits), forbids, adjusted
    beside = banned_ids, mask, mask_row, turned, operator.index(num_token_ids)
    if not draws:
        device.run(GreedyTokens(*of_kernel), logits, temperature, *beside, out)
        return out
    settings = temperature, top_k, top_p, min_p, seed, position, sample_index
    device.run(SampleTokens(*of_kernel, limits), logits, *settings, *beside, out)
    return out

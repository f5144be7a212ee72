"""Logits of few rows on a GPU, and their largest and log-sum-exp found while they are computed: see `few_rows`.

Each thread keeps the largest logit that it has seen of a row, its id, and the sum of exp(logit - largest); threads of a
block add up theirs by a butterfly, and the block that comes last those of all blocks, in their order. Which logits a
thread sees depends on the weight's shape and the chip alone, so a row's sum has the same bits in any company.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor
from cutlass.memory import SmemAllocator

from optimized.arguments import output
from optimized.compile.launch_policy import WARP
from optimized.device import Device, Outline, Tensor, device_of, libraries_take
from optimized.kernels.few_rows_dense import DenseFewRows, dense_constants, dense_sizes
from optimized.kernels.few_rows_launch import MOST_ROWS, WARPS
from optimized.kernels.few_rows_sum import pass_tiles, passes
from optimized.kernels.linear_many_rows_cublas import cublas_product
from optimized.kernels.rows import rows_of, vector_of

WORDS = 3  # of a largest logit, its id, and the sum beside it
_COUNT = 2**31 - 1  # the bits of a counter that launches leave 0, see `grid_barrier`


class VocabularyHead(NamedTuple):
    """What was asked for."""

    logits: Tensor | None  # f32 [T, V]
    token_ids: Tensor | None  # i32 [T]
    log_sum_exp: Tensor | None  # f32 [T]


@dataclass(frozen=True)
class VocabularyHeadKernel(DenseFewRows):
    """logits = x W^T, and what is asked for of them."""

    gives_logits: bool
    gives_tokens: bool
    gives_sums: bool

    keeps_rows = True

    @property
    def merges(self) -> bool:
        return self.gives_tokens or self.gives_sums

    @property
    def most_blocks(self) -> int:
        """Of a launch that merges: its rows are one chunk."""
        return min(self.units_of_weight, self.blocks)

    @property
    def kept_words(self) -> int:
        return WORDS if self.merges else 0

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        shape = self.most_blocks, WORDS, MOST_ROWS
        partial = make_fake_tensor(cutlass.Float32, shape, (WORDS * MOST_ROWS, MOST_ROWS, 1))
        return (
            *self.fake_inputs(num_rows),
            rows_of("float32", num_rows, self.out_features, 1) if self.gives_logits else None,
            vector_of("int32", num_rows) if self.gives_tokens else None,
            vector_of("float32", num_rows) if self.gives_sums else None,
            partial if self.merges else None,
            vector_of("int32", 1) if self.merges else None,
        )

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,  # [T, K]
        mWeight: cute.Tensor,  # [V, K]
        mNormWeight: Any,  # [K], or None, as all that follow
        mLogits: Any,  # f32 [T, V]
        mTokens: Any,  # i32 [T]
        mSums: Any,  # f32 [T]
        mPartial: Any,  # f32 [most_blocks, WORDS, MOST_ROWS], scratch
        mCounter: Any,  # i32 [1]
        stream: Any,
    ) -> None:
        operands = mX, mWeight, mNormWeight, mLogits, mTokens, mSums, mPartial, mCounter
        self.launch(operands, self.grid(mX.shape[0]), stream)

    def begin(self, rKept: cute.Tensor) -> None:
        if self.merges:
            for number in range(passes(self)):
                forget(rKept[None, number])

    @cute.jit
    def write(self, operands: Any, rUnit: cute.Tensor, m: Any, n: Any, rSum: Any, rBeside: Any, rKept: Any) -> None:
        if const_expr(self.gives_logits):
            operands[3][rUnit[2] + m, n] = rSum[0]
        if const_expr(self.merges):
            # NaN counts as the largest: then the row gives no token, and its sum is NaN by exp(NaN).
            shown = cutlass.Float32(math.inf) if rSum[0] != rSum[0] else rSum[0]
            best = rKept[0]
            if shown > best:  # of equal ones the first stays: ids rise
                rKept[0], rKept[1] = shown, n.bitcast(cutlass.Float32)
            if const_expr(self.gives_sums):
                rKept[2] = rKept[2] * exp_of(best, rKept[0]) + exp_of(rSum[0], rKept[0])

    @cute.jit
    def end(self, operands: Any, rKept: cute.Tensor) -> None:
        if const_expr(self.merges):
            mPartial, mCounter = operands[6], operands[7]
            thread, _, _ = cute.arch.thread_idx()
            block, _, _ = cute.arch.block_idx()
            num_rows, columns = operands[0].shape[0], 8 * pass_tiles(self)
            for number in range_constexpr(passes(self)):
                of_column = self.threads // columns
                merge_lanes(rKept[None, number], of_column)
                row = number * columns + thread // of_column
                if thread % of_column == 0 and row < num_rows:
                    for word in range_constexpr(WORDS):
                        mPartial[block, word, row] = rKept[word, number]
            if is_last_block(mCounter, self.most_blocks):
                self.merge_blocks(operands, num_rows)

    @cute.jit
    def merge_blocks(self, operands: Any, num_rows: cutlass.Int32) -> None:
        """A row a warp."""
        mTokens, mSums, mPartial = operands[4], operands[5], operands[6]
        rBest, rOther = (cute.make_rmem_tensor((WORDS,), cutlass.Float32) for _ in range(2))
        for row in cutlass.range(cute.arch.warp_idx(), num_rows, WARPS, unroll=1):
            forget(rBest)
            for part in cutlass.range(cute.arch.lane_idx(), self.most_blocks, WARP, unroll=1):
                for word in range_constexpr(WORDS):
                    rOther[word] = mPartial[part, word, row]
                merge(rBest, rOther)
            merge_lanes(rBest, WARP)
            if cute.arch.lane_idx() == 0:
                if const_expr(self.gives_tokens):
                    is_usable = rBest[0] > -math.inf and rBest[0] < math.inf
                    mTokens[row] = rBest[1].bitcast(cutlass.Int32) if is_usable else cutlass.Int32(-1)
                if const_expr(self.gives_sums):
                    mSums[row] = base_of(rBest[0]) + cute.math.log(rBest[2])


def forget(rBest: cute.Tensor) -> None:
    """No logit seen."""
    rBest[0], rBest[1], rBest[2] = (
        cutlass.Float32(-math.inf),
        cutlass.Int32(2**31 - 1).bitcast(cutlass.Float32),
        cutlass.Float32(0.0),
    )


@cute.jit
def base_of(best: cutlass.Float32) -> cutlass.Float32:
    """What is subtracted of logits before exp: the largest, or 0 where there is none."""
    return cutlass.Float32(0.0) if best == -math.inf else best


@cute.jit
def exp_of(logit: cutlass.Float32, best: cutlass.Float32) -> cutlass.Float32:
    return cute.math.exp2((logit - base_of(best)) * math.log2(math.e), approx=True)


@cute.jit
def merge(rBest: cute.Tensor, rOther: cute.Tensor) -> None:
    """Take in what others have seen. It does not matter which of the two is the other."""
    before, id_, other_id = rBest[0], rBest[1].bitcast(cutlass.Int32), rOther[1].bitcast(cutlass.Int32)
    if rOther[0] > before or (rOther[0] == before and other_id < id_):
        rBest[0], rBest[1] = rOther[0], rOther[1]
    rBest[2] = rBest[2] * exp_of(before, rBest[0]) + rOther[2] * exp_of(rOther[0], rBest[0])


@cute.jit
def merge_lanes(rBest: cute.Tensor, lanes: cutlass.Constexpr) -> None:
    """Over groups of so many lanes: then each has what all have seen."""
    rOther = cute.make_rmem_tensor((WORDS,), cutlass.Float32)
    for exponent in range_constexpr(lanes.bit_length() - 1):
        for word in range_constexpr(WORDS):
            rOther[word] = cute.arch.shuffle_sync_bfly(rBest[word], offset=1 << exponent)
        merge(rBest, rOther)


@cute.jit
def is_last_block(mCounter: cute.Tensor, blocks: cutlass.Constexpr) -> cutlass.Boolean:
    """Is this the last block that asks? It sees what all others wrote before they asked. Every thread must ask.

    The counter is one of `grid_barrier`: its lower 31 bits are 0 before and after the launch."""
    thread, _, _ = cute.arch.thread_idx()
    sIs_last = SmemAllocator().allocate_tensor(cutlass.Int32, cute.make_layout(1))
    cute.arch.sync_threads()
    if thread == 0:
        found = cute.arch.atomic_add(mCounter.iterator, cutlass.Int32(1), sem="acq_rel", scope="gpu") & _COUNT
        sIs_last[0] = cutlass.Int32(found == blocks - 1)
        if found == blocks - 1:
            cute.arch.atomic_add(mCounter.iterator, cutlass.Int32(-blocks), sem="relaxed", scope="gpu")
    cute.arch.sync_threads()
    return sIs_last[0] == 1


def vocabulary_head(
    x: Tensor,  # [T, K], rows contiguous
    weight: Tensor,  # [V, K], rows contiguous
    *,
    norm_weight: Tensor | None = None,  # [K]
    eps: float = 0.0,
    weight_bias: float = 0.0,
    logits: bool = True,
    token_ids: bool = False,
    log_sum_exp: bool = False,
    invariant: bool = False,
    pdl: bool = False,
    out: VocabularyHead | tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
) -> VocabularyHead:
    """What is asked for of the rows' logits: all of them (float32), the token of the largest, and their log-sum-exp, as
    the reference says. Without `logits` they go nowhere. Norm, pdl and errors: see `linear`; ValueError for token_ids
    or log_sum_exp of more than 64 rows too.

    invariant: a row's bits do not depend on what other rows there are, nor on how many. Up to 64 rows they never do;
    logits of more are left to cuBLAS otherwise, unless rows are to be normalised.

    out: memory for what is asked for; None: new memory. ValueError for memory of what is not.
    """
    device = device_of(x)
    num_rows, _, vocab_size = dense_sizes("vocabulary_head", x, weight, "V")
    if not (logits or token_ids or log_sum_exp):
        raise ValueError("vocabulary_head: nothing is asked for; ask for logits, token_ids or log_sum_exp")
    if (token_ids or log_sum_exp) and num_rows > MOST_ROWS:
        raise ValueError(
            f"vocabulary_head: token_ids and log_sum_exp are found for up to {MOST_ROWS} rows; these are {num_rows}: "
            "ask for logits alone"
        )
    kinds = (
        ("logits", logits, (num_rows, vocab_size), "float32"),
        ("token_ids", token_ids, (num_rows,), "int32"),
        ("log_sum_exp", log_sum_exp, (num_rows,), "float32"),
    )
    for given, (name, is_asked, *_) in zip(out, kinds, strict=True):
        if given is not None and not is_asked:
            raise ValueError(f"vocabulary_head: out.{name} is given, and {name} is not asked for")
    results = VocabularyHead(
        *(
            output("vocabulary_head", f"out.{name}", given, device, shape, dtype) if is_asked else None
            for given, (name, is_asked, shape, dtype) in zip(out, kinds, strict=True)
        )
    )
    if num_rows == 0:
        return results
    if num_rows > MOST_ROWS and not invariant and norm_weight is None and libraries_take(x):
        if not isinstance(x, Outline):
            cublas_product(x, weight, None, None, results.logits)
        return results
    constants = dense_constants(
        "vocabulary_head", device, x, weight, norm_weight, eps=eps, weight_bias=weight_bias, pdl=pdl
    )
    kernel = VocabularyHeadKernel(**constants, gives_logits=logits, gives_tokens=token_ids, gives_sums=log_sum_exp)
    device.run(kernel, x, weight, norm_weight, *results, *_scratch(device, kernel))
    return results


def _scratch(device: Device, kernel: VocabularyHeadKernel) -> tuple[Tensor | None, Tensor | None]:
    """What blocks leave for the last one, and a counter."""
    if not kernel.merges:
        return None, None
    return device.empty((kernel.most_blocks, WORDS, MOST_ROWS), "float32"), device.barrier_counter()

"""What the kernels that sample tell each other, in global memory: of each part of a row a few words and a list.

A list holds entries, the larger the earlier:
- of a row of which only the first few tokens count, (logit, id) of all that may be among the first of the row;
- of any other, (perturbed logit, id) of all that are not below the part's bound, which at least one reaches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.launch_policy import WARP
from optimized.kernels.ordered import entry_of_words, high_word, largest_of_warp, low_word

MOST_LISTED = 128  # entries of a part
_HEAD = 4  # words of 64 bits before the list: the first entry; the bound; (raw key, count); (infinite, NaN)
LENGTH = _HEAD + MOST_LISTED
PICKS = 3  # tokens that are tried at once
# Words of a row's choice, after its picks: what is to be done with them, and the bits of the row's largest quotient.
STATE, TOP = PICKS, PICKS + 1
CHOICE = PICKS + 2
DONE, TEST, SEARCH = 0, 1, 2  # is the token known, is it one of the picks, or are those none?

u32 = cutlass.Uint32
u64 = cutlass.Uint64
i32 = cutlass.Int32


class Head(NamedTuple):
    """Of a part, or of all parts of a row."""

    first: cutlass.Uint64  # (quotient, id) of the first in falling order, of no certain id where there is a list of
    # logits; a value that is not finite: no token
    bound: cutlass.Uint64  # see above
    raw: cutlass.Uint32  # key of the largest logit as it was given: see `raw_key`
    infinite: cutlass.Int32  # logits that are +infinity, and
    nan: cutlass.Int32  # NaN: counted where there are such


def heads_of(num_rows: Any, parts: int) -> Any:
    """A fake tensor i64 [R, parts, LENGTH]."""
    stride = cute.sym_int64(divisibility=parts * LENGTH)
    return make_fake_tensor(cutlass.Int64, (num_rows, parts, LENGTH), (stride, LENGTH, 1), assumed_align=8)


@cute.jit
def write_head(mPart: cute.Tensor, head: Head, count: cutlass.Int32) -> None:
    """mPart: i64 [LENGTH]. By one thread; count: entries of the list."""
    gWords = cute.recast_tensor(mPart, u64)
    gWords[0], gWords[1] = head.first, head.bound
    gWords[2] = entry_of_words(head.raw, u32(count))
    gWords[3] = entry_of_words(u32(head.infinite), u32(head.nan))


@cute.jit
def write_list(mPart: cute.Tensor, sEntries: cute.Tensor, count: cutlass.Int32, threads: cutlass.Constexpr) -> None:
    """By all threads of a block."""
    thread, _, _ = cute.arch.thread_idx()
    gWords = cute.recast_tensor(mPart, u64)
    for i in cutlass.range(thread, count, threads, unroll=1):
        gWords[_HEAD + i] = sEntries[i]


@cute.jit
def entry_of_list(mPart: cute.Tensor, number: cutlass.Int32) -> cutlass.Uint64:
    return cute.recast_tensor(mPart, u64)[_HEAD + number]


@cute.jit
def count_of_list(mPart: cute.Tensor) -> cutlass.Int32:
    return i32(low_word(cute.recast_tensor(mPart, u64)[2]))


@cute.jit
def head_of_row(mParts: cute.Tensor, parts: cutlass.Constexpr) -> Head:
    """Of i64 [parts, LENGTH], in every lane of the warp that calls it."""
    first, bound, raw, infinite, nan = u64(0), u64(0), u32(0), i32(0), i32(0)
    for part in cutlass.range(cute.arch.lane_idx(), parts, WARP, unroll=1):
        gWords = cute.recast_tensor(mParts[part, None], u64)
        own, of_list, counts = gWords[0], gWords[1], gWords[3]
        first = own if own > first else first
        bound = of_list if of_list > bound else bound
        raw = cutlass.max(raw, high_word(gWords[2]))
        infinite, nan = infinite + i32(high_word(counts)), nan + i32(low_word(counts))
    return Head(
        largest_of_warp(first),
        largest_of_warp(bound),
        cute.arch.warp_redux_sync(raw, "max"),
        i32(cute.arch.warp_redux_sync(u32(infinite), "add")),
        i32(cute.arch.warp_redux_sync(u32(nan), "add")),
    )

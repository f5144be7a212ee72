"""A set of a row's elements that is narrowed by digits: what `sample_limits` looks at, round after round.

Words rise where elements fall. There are three kinds:
- the distance to the row's largest: for top-p a fixed-point number, up to 32, beyond which is no probability; for top-k
  the bits of a float32, because it has to be found at any distance;
- the element's key, where many are as far away as such a word can tell;
- the token's id, where many are equal.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.kernels.ordered import entry_of, id_of_entry, key_of, value_of, value_of_entry
from optimized.kernels.row_cluster import QUAD, THREADS

DIGIT = 4  # bits
BINS = 1 << DIGIT  # as many as there are warps: each adds up one
MOST_SORTED = 256  # elements of a set that is put in order
SLOTS = 8  # of a round and of the one before
NEARNESS, KEY, ID = 0, 1, 2  # what a word is of

_FIRST_BITS = (127 - 20) << 23  # of 2^-20: what is nearer has the word 0, and what is 2^12 away or farther the largest
_LAST_BITS = _FIRST_BITS + (1 << 28) - 1
_LAST_NEARNESS = 12  # the shift of the round in which keys or ids take over

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
i32 = cutlass.Int32


class Searched(NamedTuple):
    """A block's slice of a row."""

    sRow: cute.Tensor  # f32 [slice]
    first: cutlass.Int32  # id of its first element
    top: cutlass.Float32  # the row's largest, finite
    last: cutlass.Uint64  # entries below it are not of the row


class LimitSet(NamedTuple):
    """Elements whose words begin with some digits."""

    kind: cutlass.Int32  # of words
    shift: cutlass.Int32  # of the next digit
    mask: cutlass.Uint32  # the bits that all have in common
    prefix: cutlass.Uint32  # those bits
    least: cutlass.Float32  # of the elements, and
    greatest: cutlass.Float32


@cute.jit
def whole_row() -> LimitSet:
    return LimitSet(i32(NEARNESS), i32(32 - DIGIT), u32(0), u32(0), -f32.inf, f32.inf)


@cute.jit
def narrowed(
    of: LimitSet,
    size: cutlass.Int32,  # elements, at most
    digit: cutlass.Int32,  # the bin in which the target is reached, and
    number: cutlass.Int32,  # its elements
    largest: cutlass.Float32,  # of the set
    smallest: cutlass.Float32,
    row: cutlass.Constexpr,
) -> tuple[LimitSet, cutlass.Int32, cutlass.Boolean]:
    """The next set, how large it is, and whether it is that bin alone; else it is the same set, by words of another
    kind."""
    is_bin = cutlass.Boolean(False)
    by_id = LimitSet(i32(ID), i32(_first_shift(row.row_length)), u32(0), u32(0), smallest, largest)
    if of.kind != ID and largest == smallest:
        of = by_id
    elif of.kind == NEARNESS and of.shift == _LAST_NEARNESS:
        of = LimitSet(i32(KEY), i32(32 - DIGIT), u32(0), u32(0), smallest, largest)
    else:
        is_bin = cutlass.Boolean(True)
        size = number
        prefix = of.prefix | u32(digit) << u32(of.shift)
        mask = of.mask | u32(BINS - 1) << u32(of.shift)
        if size > MOST_SORTED and of.shift == 0:  # all have one key
            of = LimitSet(by_id.kind, by_id.shift, u32(0), u32(0), value_of(~prefix), value_of(~prefix))
        else:
            shift = of.shift - DIGIT if size > MOST_SORTED else of.shift
            of = LimitSet(of.kind, shift, mask, prefix, of.least, of.greatest)
    return of, size, is_bin


def _first_shift(row_length: int) -> int:
    """Of the first digit of ids."""
    return (max(row_length - 1, 1).bit_length() - 1) // DIGIT * DIGIT


@cute.jit
def weight_of(distance: cutlass.Float32, counts: cutlass.Constexpr) -> cutlass.Float32:
    """What an element adds to what precedes the next: 1, or its probability over the largest one."""
    weight = f32(1.0)
    if const_expr(not counts):
        weight = cute.math.exp2(distance * f32(-math.log2(math.e)), fastmath=True)
    return weight


@cute.jit
def look_at(
    searched: Searched,
    of: LimitSet,
    is_first: cutlass.Boolean,  # round: elements are not counted, because too many are in one bin
    sCells: cute.Tensor,
    sCounts: cute.Tensor,
    sFound: cute.Tensor,
    counts: cutlass.Constexpr,
    gathers: cutlass.Constexpr,
    row: cutlass.Constexpr,
) -> tuple[cutlass.Float32, cutlass.Float32]:
    """`look_at_words`, of the kind that the set's are. Bins of masses are counted besides."""
    memory = sCells, sCounts, sFound
    counts_bins = not counts and not gathers
    largest, smallest = -f32.inf, f32.inf
    if of.kind == NEARNESS:
        if const_expr(counts_bins):
            if is_first:
                largest, smallest = look_at_words(searched, of, *memory, NEARNESS, counts, gathers, False, row)
            else:
                largest, smallest = look_at_words(searched, of, *memory, NEARNESS, counts, gathers, True, row)
        else:
            largest, smallest = look_at_words(searched, of, *memory, NEARNESS, counts, gathers, False, row)
    elif of.kind == KEY:
        largest, smallest = look_at_words(searched, of, *memory, KEY, counts, gathers, counts_bins, row)
    else:
        largest, smallest = look_at_words(searched, of, *memory, ID, counts, gathers, counts_bins, row)
    return largest, smallest


@cute.jit
def look_at_words(
    searched: Searched,
    of: LimitSet,
    sCells: cute.Tensor,  # f32 [THREADS, BINS]
    sCounts: cute.Tensor,  # u32 [BINS]; [0] alone counts what is gathered
    sFound: cute.Tensor,  # u64 [MOST_GATHERED]
    kind: cutlass.Constexpr,
    counts: cutlass.Constexpr,
    gathers: cutlass.Constexpr,
    counts_bins: cutlass.Constexpr,
    row: cutlass.Constexpr,
) -> tuple[cutlass.Float32, cutlass.Float32]:
    """Add up the set's elements by their digit; or, if gathers, list its entries. Returns the thread's largest and
    smallest element of the set."""
    thread, _, _ = cute.arch.thread_idx()
    gRow = cute.zipped_divide(searched.sRow, (QUAD,))
    rQuad = cute.make_rmem_tensor((QUAD,), f32)
    last_value, last_id = value_of_entry(searched.last), id_of_entry(searched.last)
    largest, smallest = -f32.inf, f32.inf
    for i in cutlass.range(row.quads, unroll=1):
        number = thread + i * THREADS
        if number < row.slice // QUAD:
            cute.autovec_copy(gRow[None, number], rQuad)
            for e in range_constexpr(QUAD):
                value, token = rQuad[e], searched.first + number * QUAD + e
                word = _word_of(value, token, searched.top, kind, counts)
                is_one = value > -f32.inf and word & of.mask == of.prefix
                if const_expr(kind != NEARNESS):
                    is_one = is_one and value >= of.least and value <= of.greatest
                is_one = is_one and (value > last_value or (value == last_value and token <= last_id))
                if is_one:
                    largest, smallest = cute.arch.fmax(largest, value), cute.arch.fmin(smallest, value)
                    digit = i32(word >> u32(of.shift) & u32(BINS - 1))
                    if const_expr(gathers):
                        place = cute.arch.atomic_add(sCounts.iterator, u32(1), sem="relaxed", scope="cta")
                        sFound[place] = entry_of(value, token)
                    else:
                        sCells[thread, digit] = sCells[thread, digit] + weight_of(searched.top - value, counts)
                        if const_expr(counts_bins):
                            cute.arch.atomic_add(sCounts.iterator + digit, u32(1), sem="relaxed", scope="cta")
    return largest, smallest


@cute.jit
def _word_of(
    value: cutlass.Float32,
    token: cutlass.Int32,
    top: cutlass.Float32,
    kind: cutlass.Constexpr,
    counts: cutlass.Constexpr,
) -> cutlass.Uint32:
    word = u32(token)
    if const_expr(kind == KEY):
        word = ~key_of(value)
    elif const_expr(kind == NEARNESS and counts):
        bits = i32((top - value).bitcast(u32))
        bits = cutlass.min(cutlass.max(bits, i32(_FIRST_BITS)), i32(_LAST_BITS))
        word = u32(bits - _FIRST_BITS) << u32(DIGIT)
    elif const_expr(kind == NEARNESS):
        word = u32(i32(cute.arch.fmin((top - value) * f32(2.0**26), f32(2.0**31 - 128)))) << u32(1)
    return word

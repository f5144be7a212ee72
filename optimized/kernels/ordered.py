"""Integers in the order of float32 numbers, and of (number, id) pairs: what sorting and searching compare.

-0 equals +0, and every NaN equals every other and comes below -infinity. No number has key 0.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

_SIGN = 0x80000000  # also the key of zero
_KEY_OF_NAN = 1
KEY_OF_MINUS_INFINITY = 0x007FFFFF
KEY_OF_INFINITY = 0xFF800000
LAST_ENTRY = KEY_OF_MINUS_INFINITY << 32  # below that of every number above -infinity

u32 = cutlass.Uint32
u64 = cutlass.Uint64


@cute.jit
def key_of(value: cutlass.Float32) -> cutlass.Uint32:
    """Larger for a larger number."""
    bits = value.bitcast(u32)
    magnitude = bits & u32(0x7FFFFFFF)
    key = ~bits if bits >= u32(_SIGN) else bits | u32(_SIGN)
    key = u32(_SIGN) if magnitude == u32(0) else key
    return u32(_KEY_OF_NAN) if magnitude > u32(0x7F800000) else key


@cute.jit
def value_of(key: cutlass.Uint32) -> cutlass.Float32:
    """The number of a key: +0 for that of zero, a NaN for that of NaN."""
    bits = key ^ u32(_SIGN) if key >= u32(_SIGN) else ~key
    return bits.bitcast(cutlass.Float32)


def entry_of(value: cutlass.Float32, number: cutlass.Int32) -> cutlass.Uint64:
    """Larger for what comes earlier in the falling order: by value, the lower id first on a tie. None is 0."""
    return (key_of(value).to(u64) << u64(32)) | (~u32(number)).to(u64)


def value_of_entry(entry: cutlass.Uint64) -> cutlass.Float32:
    return value_of(high_word(entry))


def id_of_entry(entry: cutlass.Uint64) -> cutlass.Int32:
    return cutlass.Int32(~low_word(entry))


def high_word(word: cutlass.Uint64) -> cutlass.Uint32:
    return (word >> u64(32)).to(u32)


def low_word(word: cutlass.Uint64) -> cutlass.Uint32:
    return word.to(u32)


def entry_of_words(high: cutlass.Uint32, low: cutlass.Uint32) -> cutlass.Uint64:
    return (high.to(u64) << u64(32)) | low.to(u64)


@cute.jit
def largest_of_warp(entry: cutlass.Uint64) -> cutlass.Uint64:
    """The largest entry of a warp's lanes, in each of them."""
    high = cute.arch.warp_redux_sync(high_word(entry), "max")
    low = low_word(entry) if high_word(entry) == high else u32(0)
    return entry_of_words(high, cute.arch.warp_redux_sync(low, "max"))

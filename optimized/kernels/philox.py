"""Philox4x32-10 and Gumbel noise on a GPU: the reference's numbers, word for word, and its logarithms to an ULP.

    u = ((word >> 9) + 0.5) * 2^-23        v = 1 - u        both exact in float32
    g = -log(-log(u))

`gumbel_near` is what most tokens are ruled out by: two of the chip's approximate base-2 logarithms. Near u = 1,
where the likeliest draws are, -log(u) is a series in v, because an approximate logarithm of u has no correct digit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cutlass
from cutlass import cute, range_constexpr

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LEAST_GUMBEL, MOST_GUMBEL = -2.82, 16.64  # of all 2^23, rounded outwards
NEAR = 2.0**-14  # what `gumbel_near` errs by at most; it is 1e-5

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32
Words4 = tuple[cutlass.Uint32, cutlass.Uint32, cutlass.Uint32, cutlass.Uint32]


class NoiseOf(NamedTuple):
    """What a row's noise is a function of, beside the token."""

    position: cutlass.Uint32  # where the drawn token will stand
    sample_index: cutlass.Uint32
    low: cutlass.Uint32  # word of the seed
    high: cutlass.Uint32


@cute.jit
def philox_words(
    position: cutlass.Uint32,
    group: cutlass.Uint32,
    sample_index: cutlass.Uint32,
    low: cutlass.Uint32,
    high: cutlass.Uint32,
) -> Words4:
    """Four words, for the tokens 4 * group .. 4 * group + 3; low, high: the seed."""
    c0, c1, c2, c3 = position, group, sample_index, u32(0)
    k0, k1 = low, high
    for _ in range_constexpr(_ROUNDS):
        first, second = c0.to(u64) * u64(_MULTIPLIERS[0]), c2.to(u64) * u64(_MULTIPLIERS[1])
        c0, c2 = (second >> u64(32)).to(u32) ^ c1 ^ k0, (first >> u64(32)).to(u32) ^ c3 ^ k1
        c1, c3 = second.to(u32), first.to(u32)
        k0, k1 = k0 + u32(_KEY_STEPS[0]), k1 + u32(_KEY_STEPS[1])
    return c0, c1, c2, c3


@cute.jit
def words_of_token(noise: NoiseOf, token: cutlass.Int32) -> Words4:
    """Those of the four tokens that share them: token's is number token % 4."""
    return philox_words(noise.position, u32(token) // u32(4), noise.sample_index, noise.low, noise.high)


@cute.jit
def gumbel(word: cutlass.Uint32) -> cutlass.Float32:
    """The reference's noise for a word; each logarithm is right to an ULP."""
    u = (cutlass.Int32(word >> u32(9)).to(f32) + f32(0.5)) * f32(2.0**-23)
    return -cute.math.log(-cute.math.log(u))


@cute.jit
def gumbel_near(word: cutlass.Uint32) -> cutlass.Float32:
    """The noise within NEAR."""
    number = cutlass.Int32(word >> u32(9))
    u = (number.to(f32) + f32(0.5)) * f32(2.0**-23)
    v = ((2**23 - 1 - number).to(f32) + f32(0.5)) * f32(2.0**-23)
    series = v * cute.math.fma(v, cute.math.fma(v, cute.math.fma(v, f32(0.25), f32(1 / 3)), f32(0.5)), f32(1.0))
    plain = cute.math.log2(u, fastmath=True) * f32(-math.log(2))
    surprise = series if v < f32(1 / 16) else plain
    return cute.math.log2(surprise, fastmath=True) * f32(-math.log(2))

"""FP8 quantization: e4m3 codes with one float32 factor for each block of a matrix.

    scale_inv = max(amax(block) * (1 / 448), 2^-116)
    q         = e4m3(clip(x * (1 / scale_inv), -448, 448))        x ~ q * scale_inv

`scale_inv` is what dequantization MULTIPLIES; the name is DeepSeek-V3's, whose checkpoints have it. 448 is the largest
e4m3 value, so a block's largest element gets the largest code. Weights use blocks of 128 x 128, activations 1 x 128.

- The clip comes before the cast, because e4m3 has no infinity: what lies beyond 464 becomes NaN. (With a factor from
  its own block, x is beyond 448 by a few roundings at most.)
- amax = 0 gives the smallest factor and codes of 0.
- The floor 2^-116 keeps the factor and its reciprocal finite for the tiniest blocks. It is that high, and not 2^-126,
  so that a subnormal x, which some processors read as 0, has the code 0 on all of them.
- A NaN or infinity makes its own block NaN, and no other.
- Sizes need not be multiples of the block: the blocks at the edges are smaller.

Rounding: codes are discrete, so every step is defined to the bit. Arithmetic is float32 (float64 input is rounded to
it first); the factor is amax times the float32 nearest to 1/448; its reciprocal is rounded once for each block; x is
multiplied by it; the cast is to nearest, ties to even. The divisions that one would write instead, amax / 448 and
x / scale_inv, are no definition: under `jax.jit` XLA turns both into these multiplications, and NumPy does not.
DeepSeek's kernels divide twice, and transformers multiplies x by 448 / amax: factors agree to their last two bits,
codes but at ties.
Source: the OCP 8-bit floating point specification; DeepSeek-V3, arXiv:2412.19437, section 3.3.
"""

from __future__ import annotations

import array_api_extra as xpx

from reference.formats import FLOAT8_E4M3, FP8_WEIGHT_BLOCK, Array
from reference.kernels.precision import wide

SMALLEST_SCALE_INV = 2.0**-116


def quantize_fp8(
    x: Array,  # [..., M, K]
    *,
    block: tuple[int, int] = FP8_WEIGHT_BLOCK,
) -> tuple[Array, Array]:  # (q e4m3 [..., M, K], scale_inv f32 [..., ceil(M / rows), ceil(K / columns)])
    """Codes and factors of a matrix, or of a stack of them."""
    xp = x.__array_namespace__()
    values = xp.astype(x, xp.float32)
    amax = _block_max(xp.abs(values), block)
    scale_inv = xp.maximum(amax * xp.asarray(1.0 / FLOAT8_E4M3.max, dtype=xp.float32), SMALLEST_SCALE_INV)
    scaled = values * _spread(1.0 / scale_inv, x.shape, block)
    return xp.astype(xp.clip(scaled, -FLOAT8_E4M3.max, FLOAT8_E4M3.max), FLOAT8_E4M3.dtype), scale_inv


def dequantize_fp8(
    q: Array,  # e4m3 [..., M, K]
    scale_inv: Array,  # f32 [..., ceil(M / rows), ceil(K / columns)]
    *,
    block: tuple[int, int] = FP8_WEIGHT_BLOCK,
) -> Array:  # f32 [..., M, K]
    """q * scale_inv, rounded once to float32 (exact in float64, which a float64 scale_inv gives)."""
    return wide(q) * _spread(wide(scale_inv), q.shape, block)


def rounded_to_fp8(
    x: Array,  # [..., M, K]
    *,
    block: tuple[int, int],
) -> Array:  # [..., M, K], float32 (float64 for a float64 x)
    """What is left of x after e4m3. Factors in the dtype of the arithmetic: in float64 that makes the values exact."""
    xp = x.__array_namespace__()
    codes, scale_inv = quantize_fp8(x, block=block)
    return dequantize_fp8(codes, xp.astype(scale_inv, wide(x).dtype), block=block)


def _block_max(x: Array, block: tuple[int, int]) -> Array:
    """The largest element of each block: [..., M, K] -> [..., ceil(M / rows), ceil(K / columns)]; x >= 0.

    NaN where the block has one: said apart, because XLA on a CPU passes over NaN in the maximum of a large array.
    """
    (*stack, m, k), (rows, columns) = x.shape, block
    m_blocks, k_blocks = -(-m // rows), -(-k // columns)
    no_padding = [(0, 0)] * len(stack)
    padded = xpx.pad(x, [*no_padding, (0, m_blocks * rows - m), (0, k_blocks * columns - k)])
    xp = x.__array_namespace__()
    blocks = xp.reshape(padded, (*stack, m_blocks, rows, k_blocks, columns))
    return xp.where(xp.any(xp.isnan(blocks), axis=(-3, -1)), xp.nan, xp.max(blocks, axis=(-3, -1)))


def _spread(scale_inv: Array, shape: tuple[int, ...], block: tuple[int, int]) -> Array:
    """Each block's factor at each of its elements: [..., ceil(M / rows), ceil(K / columns)] -> shape [..., M, K]."""
    xp = scale_inv.__array_namespace__()
    by_row = xp.repeat(scale_inv, block[0], axis=-2)[..., : shape[-2], :]
    return xp.repeat(by_row, block[1], axis=-1)[..., : shape[-1]]

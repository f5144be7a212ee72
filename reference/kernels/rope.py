"""Rotary position embedding, in the half-split layout of Hugging Face checkpoints.

Channel i < D/2 and channel i + D/2 are one point in a plane, turned by the angle of its position (`rope_table`):

    out[i]       = x[i] cos - x[i + D/2] sin
    out[i + D/2] = x[i + D/2] cos + x[i] sin

so q . k depends on the difference of their positions alone.

Rounding: computed in float32 and rounded once, at the end. Where transformers differs: it rounds cos and sin to the
model's dtype, and rounds both products and their sum.
Source: RoFormer, arXiv:2104.09864.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.precision import wide


def rope(
    x: Array,  # [T, N, D]
    positions: Array,  # i32 [T], each in 0 .. P-1
    cos: Array,  # f32 [P, D/2]
    sin: Array,  # f32 [P, D/2]
) -> Array:  # [T, N, D], x's dtype
    """Turn every head of token t by its position's angles."""
    xp = x.__array_namespace__()
    cos, sin = (wide(xp.take(table, positions, axis=0))[:, None, :] for table in (cos, sin))  # [T, 1, D/2]
    half = x.shape[-1] // 2
    first, second = wide(x[..., :half]), wide(x[..., half:])
    turned = xp.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return xp.astype(turned, x.dtype)

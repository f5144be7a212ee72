"""Residual addition: the stream that every block reads and adds to.

    y = x + residual                                                            x, residual, y: [T, H]

Rounding: one, of the sum, to the dtype of `x`. So the stream is held in the model's dtype between blocks, and the
norm that reads it sees the rounded sum (as transformers does).
Source: He et al., "Identity mappings in deep residual networks", arXiv:1603.05027.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.precision import wide


def residual_add(
    x: Array,  # [T, H] what a block adds
    residual: Array,  # [T, H] the stream before it
) -> Array:  # [T, H] the stream after it, in x's dtype
    xp = x.__array_namespace__()
    return xp.astype(wide(x) + wide(residual), x.dtype)

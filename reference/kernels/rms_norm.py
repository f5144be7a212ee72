"""Root-mean-square normalisation over the last axis, alone and after a residual sum.

    y = x / sqrt(mean(x^2) + eps) * (weight + weight_bias)

weight_bias is 0 for Qwen3; Qwen3-Next stores its weights around zero and uses 1.

Rounding: `rms_norm` rounds once, at the end. `add_rms_norm` rounds twice: the residual sum is rounded to the model's
dtype first, and it is the ROUNDED sum that is normalised. The next layer reads that rounded sum, so both see one value.

Where transformers differs: `Qwen3RMSNorm` rounds x / rms to the model's dtype, multiplies by the weight in that dtype
and so rounds a second time. Ours errs by half an ULP, theirs by up to one and a half.

Range: a row whose squares sum to more than 3.4e38 overflows float32 and becomes 0; no model comes near.
Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.precision import wide
from reference.kernels.residual import residual_add


def rms_norm(
    x: Array,  # [..., H]
    weight: Array,  # [H]
    eps: float,
    *,
    weight_bias: float = 0.0,
) -> Array:  # [..., H], x's dtype
    """Normalise each row of x to a root mean square of 1, then scale its channels. A row of zeros stays zero."""
    xp = x.__array_namespace__()
    values = wide(x)
    mean_square = xp.mean(values * values, axis=-1, keepdims=True)
    normed = values / xp.sqrt(mean_square + eps)
    return xp.astype(normed * (wide(weight) + weight_bias), x.dtype)


def add_rms_norm(
    x: Array,  # [T, H], what a layer adds
    residual: Array,  # [T, H], what it adds to
    weight: Array,  # [H]
    eps: float,
    *,
    weight_bias: float = 0.0,
) -> tuple[Array, Array]:  # (normed [T, H], new residual [T, H]), x's dtype
    """Add x to the residual stream, round the sum, normalise the rounded sum."""
    new_residual = residual_add(x, residual)
    return rms_norm(new_residual, weight, eps, weight_bias=weight_bias), new_residual

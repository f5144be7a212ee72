"""Linear projections, y = x W^T + b, from plain and from FP8 weights.

    out[t, n] = sum_k x[t, k] weight[n, k] + bias[n]

Weights are stored [out_features, in_features], as Hugging Face does.

Rounding: products of bfloat16, float16 or e4m3 values are exact in float32; the sum over k is float32, in any order
(within a small multiple of sum |x w| 2^-23), the bias is added in float32, and there is ONE rounding at the end.
`torch.nn.functional.linear` does the same on a CPU; on a GPU it may split the sum over k and round its parts.

FP8: x is quantized here, for each token and group of 128 channels, because the product of an FP8 checkpoint is DEFINED
on quantized activations; both sides are then dequantized to float32 and multiplied as above. A kernel may as well sum
the products of codes over a group of 128 and multiply by its factors then: that is another order of the same sum.
Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.2; transformers `FP8Linear`.
"""

from __future__ import annotations

from reference.formats import FP8_ACTIVATION_BLOCK, FP8_WEIGHT_BLOCK, Array
from reference.kernels.precision import wide
from reference.kernels.quantize import dequantize_fp8, rounded_to_fp8


def linear(
    x: Array,  # [T, K]
    weight: Array,  # [N, K]
    bias: Array | None = None,  # [N]
) -> Array:  # [T, N], x's dtype
    """Project every token."""
    xp = x.__array_namespace__()
    product = xp.matmul(wide(x), wide(weight).T)
    return xp.astype(product if bias is None else product + wide(bias), x.dtype)


def linear_fp8(
    x: Array,  # [T, K]
    weight: Array,  # e4m3 [N, K]
    weight_scale_inv: Array,  # f32 [ceil(N / 128), ceil(K / 128)]
    bias: Array | None = None,  # [N]
) -> Array:  # [T, N], x's dtype
    """Quantize x, then project it with weights that are quantized already."""
    xp = x.__array_namespace__()
    x_hat = rounded_to_fp8(x, block=FP8_ACTIVATION_BLOCK)
    weight_hat = dequantize_fp8(weight, xp.astype(weight_scale_inv, x_hat.dtype), block=FP8_WEIGHT_BLOCK)
    return xp.astype(linear(x_hat, weight_hat, bias), x.dtype)

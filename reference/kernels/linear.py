"""Linear projections, y = x W^T + b + r, from plain and from FP8 weights.

    out[t, n] = f[t] sum_k x[t, k] weight[n, k] + bias[n] + residual[t, n]

Weights are stored [out_features, in_features], as Hugging Face does. With a norm weight the rows of x are normalised
first (see `rms_norm`); without, f is 1.

Rounding: products of bfloat16, float16 or e4m3 values are exact in float32; the sum over k is float32, in any order
(within a small multiple of sum |x w| 2^-23), bias and residual are added in float32, in this order, and there is ONE
rounding at the end. `torch.nn.functional.linear` does the same on a CPU; on a GPU it may split the sum over k and round
its parts.

With a norm weight there are two roundings: x (norm_weight + weight_bias) is rounded to x's dtype before it is
multiplied by the weight, and then the end. f = 1 / sqrt(mean(x^2) + eps), of x as it came, multiplies the float32 sum:
so it may be found while the sum is. `rms_norm` followed by `linear` rounds at other places: x f (norm_weight +
weight_bias) once, and the end. Both round the factors of the products to half an ULP.

FP8: x is quantized here, for each token and group of 128 channels, because the product of an FP8 checkpoint is DEFINED
on quantized activations; both sides are then dequantized to float32 and multiplied as above. A kernel may as well sum
the products of codes over a group of 128 and multiply by its factors then: that is another order of the same sum.
Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.2; transformers `FP8Linear`.
"""

from __future__ import annotations

from reference.formats import FP8_ACTIVATION_BLOCK, FP8_WEIGHT_BLOCK, Array, DType
from reference.kernels.precision import wide
from reference.kernels.quantize import dequantize_fp8, rounded_to_fp8


def linear(
    x: Array,  # [T, K]
    weight: Array,  # [N, K]
    bias: Array | None = None,  # [N]
    residual: Array | None = None,  # [T, N]
    *,
    norm_weight: Array | None = None,  # [K]
    eps: float = 0.0,
    weight_bias: float = 0.0,
    rounded_to: DType | None = None,
) -> Array:  # [T, N], x's dtype
    """Project every token. eps, weight_bias, rounded_to: of the norm, see `product`."""
    xp = x.__array_namespace__()
    total = product(x, weight, norm_weight, eps=eps, weight_bias=weight_bias, rounded_to=rounded_to)
    total = total if bias is None else total + wide(bias)
    total = total if residual is None else total + wide(residual)
    return xp.astype(total, x.dtype)


def product(
    x: Array,  # [T, K]
    weight: Array,  # [N, K]
    norm_weight: Array | None = None,  # [K]
    *,
    eps: float = 0.0,
    weight_bias: float = 0.0,
    rounded_to: DType | None = None,
) -> Array:  # f32 [T, N]
    """What `linear` rounds when all is added. rounded_to: what x times the norm's weight is rounded to; None: x's
    dtype. The oracle, whose x is float64, is told of it."""
    xp = x.__array_namespace__()
    if norm_weight is None:
        return xp.matmul(wide(x), wide(weight).T)
    values = wide(x)
    factor = 1.0 / xp.sqrt(xp.mean(values * values, axis=-1, keepdims=True) + eps)
    weighted = xp.astype(values * (wide(norm_weight) + weight_bias), rounded_to or x.dtype)  # rounding point
    return xp.matmul(xp.astype(weighted, values.dtype), wide(weight).T) * factor


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

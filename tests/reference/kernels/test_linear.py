"""Projections: float32 sums, one rounding after the bias, and FP8 as the product of what was quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from parity.ulp import oracle, spacing
from reference.formats import FP8_ACTIVATION_BLOCK, Array, DType
from reference.kernels.linear import linear, linear_fp8
from reference.kernels.quantize import dequantize_fp8, quantize_fp8
from tests.reference.kernels.helpers import assert_same_bits, normal
from tests.reference.kernels.torch_arrays import from_torch, to_torch

SHAPES = [(0, 64, 32), (1, 1, 1), (7, 769, 33)]  # T, K, N


def assert_within_a_float32_sum(actual: Array, x: Array, weight: Array, bias: Array | None) -> None:
    """|error| <= one rounding + 4 x sum |x w| 2^-23, against float64."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    expected = x @ weight.T + (0.0 if bias is None else bias.astype(np.float64))
    allowed = 0.5 * spacing(expected, actual.dtype) + 4 * 2.0**-23 * (np.abs(x) @ np.abs(weight).T + np.abs(expected))
    assert np.all(np.abs(actual.astype(np.float64) - expected) <= allowed)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_within_a_float32_sum_of_the_oracle(
    run: Callable[..., Any], dtype: DType, shape: tuple[int, int, int], with_bias: bool
) -> None:
    num_tokens, k, n = shape
    x, weight = normal(0, num_tokens, k, dtype=dtype), normal(1, n, k, dtype=dtype, scale=k**-0.5)
    bias = normal(2, n, dtype=dtype) if with_bias else None
    actual = run(linear, x, weight, bias)
    assert actual.dtype == dtype
    assert actual.shape == (num_tokens, n)
    assert_within_a_float32_sum(actual, x, weight, bias)


def test_that_bound_catches_a_wrong_element_and_zeros(dtype: DType) -> None:
    x, weight = normal(0, 3, 64, dtype=dtype), normal(1, 8, 64, dtype=dtype, scale=0.125)
    right = linear(x, weight)
    corrupted = right.copy()
    corrupted[1, 2] += np.abs(corrupted[1, 2]) * np.asarray(0.02, dtype)
    for wrong in (corrupted, np.zeros_like(right)):
        with pytest.raises(AssertionError):
            assert_within_a_float32_sum(wrong, x, weight, None)


def test_whole_numbers_are_exact(run: Callable[..., Any], dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.integers(-3, 4, (4, 40)).astype(dtype), rng.integers(-2, 3, (6, 40)).astype(dtype)
    expected = x.astype(np.int64) @ weight.astype(np.int64).T
    assert np.array_equal(run(linear, x, weight).astype(np.int64), expected)


@pytest.mark.parametrize("narrow", [ml_dtypes.bfloat16, np.float16])
def test_the_sum_is_float32(run: Callable[..., Any], narrow: Any) -> None:
    """4096 ones: a sum kept in bfloat16 would stand still at 256, in float16 at 2048."""
    ones = np.ones((1, 4096), narrow)
    assert run(linear, ones, ones).astype(np.float32) == 4096.0


def test_the_bias_is_added_before_the_rounding(run: Callable[..., Any]) -> None:
    """1 + 2^-8 - 1: rounded first, the product would be 1 (a tie to even in bfloat16) and the sum 0."""
    x = np.array([[1.0, 2.0**-8]], ml_dtypes.bfloat16)
    actual = run(linear, x, np.ones((1, 2), ml_dtypes.bfloat16), np.array([-1.0], ml_dtypes.bfloat16))
    assert actual.astype(np.float32) == 2.0**-8


@pytest.mark.parametrize("with_bias", [False, True])
def test_torch_agrees(dtype: DType, with_bias: bool) -> None:
    x, weight = normal(0, 7, 300, dtype=dtype), normal(1, 50, 300, dtype=dtype, scale=300**-0.5)
    bias = normal(2, 50, dtype=dtype) if with_bias else None
    theirs = torch.nn.functional.linear(to_torch(x), to_torch(weight), None if bias is None else to_torch(bias))
    assert_within_a_float32_sum(from_torch(theirs), x, weight, bias)


@pytest.mark.parametrize(
    ("shape", "with_bias"), [((0, 128, 16), False), ((1, 128, 128), False), ((3, 300, 200), True)], ids=str
)
def test_fp8_is_the_product_of_what_was_quantized(
    run: Callable[..., Any], dtype: DType, shape: tuple[int, int, int], with_bias: bool
) -> None:
    num_tokens, k, n = shape
    x = normal(0, num_tokens, k, dtype=dtype)
    codes, scale_inv = quantize_fp8(normal(1, n, k, scale=k**-0.5))
    bias = normal(2, n, dtype=dtype) if with_bias else None
    actual = run(linear_fp8, x, codes, scale_inv, bias)
    assert actual.dtype == dtype
    x_hat = dequantize_fp8(*quantize_fp8(x, block=FP8_ACTIVATION_BLOCK), block=FP8_ACTIVATION_BLOCK)
    assert_within_a_float32_sum(actual, x_hat, dequantize_fp8(codes, scale_inv), bias)


def test_the_fp8_oracle_is_exact() -> None:
    x, (codes, scale_inv) = normal(0, 3, 256), quantize_fp8(normal(1, 130, 256))
    x_codes, x_scale_inv = quantize_fp8(x, block=FP8_ACTIVATION_BLOCK)
    x_hat = x_codes.astype(np.float64) * np.repeat(x_scale_inv.astype(np.float64), 128, 1)
    weight_hat = codes.astype(np.float64) * np.repeat(np.repeat(scale_inv.astype(np.float64), 128, 0)[:130], 128, 1)
    actual = linear_fp8(x.astype(np.float64), codes, scale_inv)
    assert actual.dtype == np.float64
    assert np.allclose(actual, x_hat @ weight_hat.T, rtol=1e-13, atol=1e-13)


def test_fp8_quantizes_the_activations_too(run: Callable[..., Any]) -> None:
    x, (codes, scale_inv) = normal(0, 4, 256), quantize_fp8(normal(1, 64, 256, scale=1 / 16))
    of_plain_x = x.astype(np.float64) @ dequantize_fp8(codes, scale_inv).astype(np.float64).T
    error = np.abs(run(linear_fp8, x, codes, scale_inv) - of_plain_x)
    assert 1e-3 < error.max() < 0.2  # visible, and of the size that 3 mantissa bits leave


def test_each_activation_group_has_its_own_factor() -> None:
    """A group 10^6 times larger than its neighbour must not push the neighbour's values to zero."""
    x = normal(0, 2, 256)
    x[:, 128:] *= 1e6
    codes, scale_inv = quantize_fp8(normal(1, 8, 256))
    of_small_group = codes.copy()
    of_small_group[:, 128:] = 0
    expected = oracle(linear, x[:, :128], dequantize_fp8(codes[:, :128], scale_inv[:, :1]))
    assert np.allclose(linear_fp8(x, of_small_group, scale_inv), expected, atol=2.0)
    assert np.abs(expected).max() > 10.0


def test_the_weights_factor_is_multiplied() -> None:
    x, (codes, scale_inv) = normal(0, 2, 128), quantize_fp8(normal(1, 8, 128))
    once, doubled = linear_fp8(x, codes, scale_inv), linear_fp8(x, codes, scale_inv * 2)
    assert_same_bits(doubled, once * 2)


def test_a_zero_token_gives_the_bias_and_a_nan_token_spoils_no_other(run: Callable[..., Any]) -> None:
    x, (codes, scale_inv), bias = normal(0, 3, 256), quantize_fp8(normal(1, 16, 256)), normal(2, 16)
    clean = run(linear_fp8, x, codes, scale_inv, bias)
    x[0], x[1, 5] = 0, np.nan
    actual = run(linear_fp8, x, codes, scale_inv, bias)
    assert_same_bits(actual[0], bias)
    assert np.isnan(actual[1]).all()
    assert_same_bits(actual[2], clean[2])

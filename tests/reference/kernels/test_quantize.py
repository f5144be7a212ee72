"""FP8 quantization: half a code's spacing away, the same bits on both backends, and no NaN that was not there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.finegrained_fp8 import Fp8Quantize

from parity.ulp import spacing
from reference.formats import FLOAT8_E4M3, FP8_ACTIVATION_BLOCK, FP8_WEIGHT_BLOCK, Array, DType
from reference.kernels.quantize import SMALLEST_SCALE_INV, dequantize_fp8, quantize_fp8
from tests.reference.kernels.helpers import assert_same_bits, normal, run_jax
from tests.reference.kernels.torch_arrays import from_torch, to_torch

E4M3 = FLOAT8_E4M3.dtype


def codes(values: list[float]) -> Array:
    return np.array(values, np.float32).astype(E4M3)


def plain_quantize(x: Array, block: tuple[int, int]) -> tuple[Array, Array]:
    """The definition block by block, in loops."""
    (m, k), (rows, columns) = x.shape, block
    q, scale_inv = np.zeros((m, k), E4M3), np.zeros((-(-m // rows), -(-k // columns)), np.float32)
    for i in range(scale_inv.shape[0]):
        for j in range(scale_inv.shape[1]):
            part = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scale = max(np.abs(x[part]).max() * np.float32(1 / 448), np.float32(2.0**-116))
            scale_inv[i, j] = scale
            q[part] = np.clip(x[part] * (np.float32(1) / scale), -448, 448).astype(E4M3)
    return q, scale_inv


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((0, 128), FP8_ACTIVATION_BLOCK),
        ((1, 1), FP8_WEIGHT_BLOCK),
        ((130, 257), FP8_WEIGHT_BLOCK),
        ((5, 384), FP8_ACTIVATION_BLOCK),
        ((7, 11), (3, 5)),
    ],
    ids=str,
)
def test_to_the_bit(run: Callable[..., Any], dtype: DType, shape: tuple[int, int], block: tuple[int, int]) -> None:
    x = normal(0, *shape, dtype=dtype, scale=5.0)
    q, scale_inv = run(quantize_fp8, x, block=block)
    expected_q, expected_scale_inv = plain_quantize(x.astype(np.float32), block)
    assert_same_bits(q, expected_q)
    assert_same_bits(scale_inv, expected_scale_inv)
    expected = q.astype(np.float32) * np.repeat(np.repeat(scale_inv, block[0], 0), block[1], 1)[: shape[0], : shape[1]]
    assert_same_bits(run(dequantize_fp8, q, scale_inv, block=block), expected)


def test_a_stack_is_quantized_matrix_by_matrix(run: Callable[..., Any]) -> None:
    x = normal(0, 3, 130, 200)
    q, scale_inv = run(quantize_fp8, x)
    assert scale_inv.shape == (3, 2, 2)
    for i in range(3):
        alone_q, alone_scale_inv = quantize_fp8(x[i])
        assert_same_bits(q[i], alone_q)
        assert_same_bits(scale_inv[i], alone_scale_inv)
        assert_same_bits(run(dequantize_fp8, q, scale_inv)[i], dequantize_fp8(alone_q, alone_scale_inv))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(1, 40),
    k=st.integers(1, 40),
    exponent=st.integers(-100, 100),
    block=st.sampled_from([(1, 8), (16, 16), (3, 5)]),
)
def test_dequantized_is_within_half_a_codes_spacing(
    seed: int, m: int, k: int, exponent: int, block: tuple[int, int]
) -> None:
    x = np.ldexp(normal(seed, m, k), exponent)
    q, scale_inv = quantize_fp8(x, block=block)
    spread = np.repeat(np.repeat(scale_inv, block[0], 0), block[1], 1)[:m, :k].astype(np.float64)
    error = np.abs(dequantize_fp8(q, scale_inv, block=block) - x.astype(np.float64))
    half_spacing = spacing(np.minimum(np.abs(x) / spread, 448), E4M3) / 2 * spread
    assert np.all(error <= half_spacing * (1 + 1e-5))
    assert np.all(np.isfinite(q.astype(np.float32)))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-126, 100), block=st.sampled_from([(1, 8), (16, 16)]))
def test_quantizing_twice_changes_no_code(seed: int, exponent: int, block: tuple[int, int]) -> None:
    q, scale_inv = quantize_fp8(np.ldexp(normal(seed, 20, 24), exponent), block=block)
    again_q, again_scale_inv = quantize_fp8(dequantize_fp8(q, scale_inv, block=block), block=block)
    assert_same_bits(again_q, q)
    assert np.all(np.abs(again_scale_inv - scale_inv) <= 2 * np.spacing(scale_inv))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_largest_element_gets_the_largest_code(seed: int) -> None:
    x = normal(seed, 5, 64)
    q, _ = quantize_fp8(x, block=(1, 64))
    largest = np.take_along_axis(q, np.abs(x).argmax(axis=1)[:, None], axis=1).astype(np.float32)
    assert np.all(np.abs(largest) == 448)


def test_zeros_give_zeros(run: Callable[..., Any], dtype: DType) -> None:
    x = normal(0, 4, 256, dtype=dtype)
    x[:, :128] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q, scale_inv = run(quantize_fp8, x, block=FP8_ACTIVATION_BLOCK)
    assert not q[:, :128].astype(np.float32).any()
    assert np.all(scale_inv[:, 0] == SMALLEST_SCALE_INV)
    assert np.all(scale_inv[:, 1] > 1e-3)


@pytest.mark.parametrize("exponent", [-149, -140, -126, -118, -110, -105, -100, 100, 127])
def test_the_tiniest_and_the_largest_blocks(run: Callable[..., Any], exponent: int) -> None:
    x = np.array([[1.0, -0.5, 0.25, 0.0]], np.float32) * np.float32(2.0) ** exponent
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q, scale_inv = run(quantize_fp8, x)
        restored = run(dequantize_fp8, q, scale_inv)
    assert np.all((scale_inv >= SMALLEST_SCALE_INV) & np.isfinite(scale_inv))
    assert np.all(np.abs(restored - x) <= np.maximum(2.0**-4 * np.abs(x), SMALLEST_SCALE_INV * 2.0**-10))


def test_a_subnormal_has_the_code_zero_whether_or_not_it_is_flushed() -> None:
    subnormal = np.nextafter(np.float32(2.0**-126), np.float32(0))
    for amax in (0.0, 2.0**-107, 1.0):
        x = np.array([[subnormal, amax]], np.float32)
        q, _ = quantize_fp8(x)
        assert_same_bits(run_jax(quantize_fp8, x)[0], q)
        assert q[0, 0] == 0


def test_halves_go_to_the_even_code_and_the_edge_saturates(run: Callable[..., Any]) -> None:
    x = np.array([[448.0, 1.0625, 1.1875, -1.0625, 431.9, 432.0, 2.0**-10, 3 * 2.0**-10]], np.float32)
    q, scale_inv = run(quantize_fp8, x)
    assert scale_inv == np.float32(448.0) * np.float32(1 / 448)
    assert_same_bits(q[0], codes([448, 1.0, 1.25, -1.0, 416, 448, 0.0, 2.0**-8]))


def test_to_the_bit_at_ties(run: Callable[..., Any]) -> None:
    """Elements half-way between two codes, where one bit in the arithmetic decides: a true division falls otherwise."""
    amax = np.arange(1000, 21000, dtype=np.float32)
    scale = amax * np.float32(1 / 448)
    short = scale.view(np.uint32) % 32 == 0  # with 5 bits to spare, 1.8125 x scale is exact
    amax, scale = amax[short], scale[short]
    x = np.stack([amax, np.float32(1.8125) * scale], axis=1)
    q, scale_inv = run(quantize_fp8, x, block=(1, 2))
    expected_q, expected_scale_inv = plain_quantize(x, (1, 2))
    assert_same_bits(q, expected_q)
    assert_same_bits(scale_inv, expected_scale_inv)
    by_division = (x[:, 1] / scale).astype(E4M3)
    assert 0 < np.count_nonzero(by_division != q[:, 1]) < 0.1 * len(q)


def test_without_the_clip_there_would_be_nan() -> None:
    assert np.isnan(np.array([500.0], np.float32).astype(E4M3).astype(np.float32)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scale", [1, 16])  # XLA reduces what is large by other code
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_finite_spoils_its_own_block_alone(run: Callable[..., Any], bad: float, scale: int) -> None:
    rows, columns = block = (2 * scale, 8 * scale)
    x = normal(0, 2 * rows, 4 * columns)
    clean = dequantize_fp8(*quantize_fp8(x, block=block), block=block)
    x[2 * rows - 1, columns + 1] = bad
    q, scale_inv = run(quantize_fp8, x, block=block)
    restored = run(dequantize_fp8, q, scale_inv, block=block)
    spoiled = np.zeros(x.shape, bool)
    spoiled[rows:, columns : 2 * columns] = True
    assert np.isnan(restored[spoiled]).all()
    assert_same_bits(restored[~spoiled], clean[~spoiled])


def test_a_float64_factor_dequantizes_exactly() -> None:
    q, scale_inv = quantize_fp8(normal(0, 4, 256))
    exact = dequantize_fp8(q, scale_inv.astype(np.float64))
    assert exact.dtype == np.float64
    assert_same_bits(dequantize_fp8(q, scale_inv), exact.astype(np.float32))
    assert not np.array_equal(dequantize_fp8(q, scale_inv), exact)


def test_transformers_differs_at_ties_alone() -> None:
    x = normal(0, 256, 384)
    config = SimpleNamespace(weight_block_size=FP8_WEIGHT_BLOCK, scale_fmt=None)
    quantizer: Any = Fp8Quantize(SimpleNamespace(quantization_config=config))
    theirs = quantizer.convert({"m.weight": to_torch(x)})
    q, scale_inv = quantize_fp8(x)
    their_q, their_scale_inv = from_torch(theirs["m.weight"]), from_torch(theirs["m.weight_scale_inv"])
    assert np.all(np.abs(their_scale_inv - scale_inv) <= 2 * np.spacing(scale_inv))
    steps = np.abs(their_q.view(np.uint8).astype(int) - q.view(np.uint8).astype(int))
    assert steps.max() <= 1
    assert np.mean(steps != 0) < 1e-3

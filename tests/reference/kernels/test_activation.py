"""Gated activations: error against float64, torch's formulas, and the tails where formulas break."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.activations import ACT2FN

from parity.ulp import oracle, rounded_once, ulp_error
from reference.formats import DType
from reference.kernels.activation import gated_activation
from reference.model.config import ACTIVATIONS
from tests.reference.kernels.helpers import normal
from tests.reference.kernels.torch_arrays import from_torch, to_torch


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(0, 64), (1, 1), (7, 769), (2, 3, 64)], ids=str)
def test_one_rounding_away_from_the_oracle(
    run: Callable[..., Any], dtype: DType, kind: str, shape: tuple[int, ...]
) -> None:
    gate, up = normal(0, *shape, dtype=dtype, scale=3.0), normal(1, *shape, dtype=dtype)
    actual = run(gated_activation, gate, up, kind=kind)
    assert actual.dtype == dtype
    assert ulp_error(actual, oracle(gated_activation, gate, up, kind=kind)) <= rounded_once(dtype, 16)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_the_oracle_is_transformers_in_float64(kind: str) -> None:
    gate, up = normal(0, 5, 999, scale=4.0).astype(np.float64), normal(1, 5, 999).astype(np.float64)
    expected = from_torch(ACT2FN[kind](to_torch(gate)) * to_torch(up))
    assert np.allclose(gated_activation(gate, up, kind=kind), expected, rtol=1e-12, atol=1e-15)


def test_the_kinds_differ() -> None:
    gate, up = normal(0, 4, 64), np.ones((4, 64), np.float32)
    outputs = [gated_activation(gate, up, kind=kind) for kind in ACTIVATIONS]
    assert np.abs(outputs[0] - outputs[1]).max() > 0.05
    assert 1e-5 < np.abs(outputs[1] - outputs[2]).max() < 1e-2


def test_transformers_rounds_twice(dtype: DType) -> None:
    gate, up = normal(0, 64, 256, dtype=dtype), normal(1, 64, 256, dtype=dtype)
    theirs = from_torch(torch.nn.functional.silu(to_torch(gate)) * to_torch(up))
    expected = oracle(gated_activation, gate, up, kind="silu")
    assert ulp_error(theirs, expected) <= rounded_once(dtype, 16) + 1.0
    if dtype != np.float32:
        assert ulp_error(theirs, expected) > 0.9 > ulp_error(gated_activation(gate, up, kind="silu"), expected)


def test_gate_and_up_are_not_exchanged() -> None:
    gate, up = normal(0, 3, 64), normal(1, 3, 64)
    right = gated_activation(gate, up, kind="silu")
    assert ulp_error(right, oracle(gated_activation, up, gate, kind="silu")) > 1000


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_the_negative_tail_keeps_its_digits(run: Callable[..., Any], kind: str) -> None:
    gate = np.linspace(-8.0, -3.0, 501, dtype=np.float32)
    actual = run(gated_activation, gate, np.ones_like(gate), kind=kind)
    expected = oracle(gated_activation, gate, np.ones_like(gate), kind=kind)
    assert np.allclose(actual, expected, rtol=2e-5, atol=0)


def test_the_usual_formula_loses_them() -> None:
    """The negative control of the test above."""
    gate = np.linspace(-8.0, -3.0, 501, dtype=np.float32)
    z = np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate**3)
    usual = np.float32(0.5) * gate * (1 + np.tanh(z))
    expected = oracle(gated_activation, gate, np.ones_like(gate), kind="gelu_pytorch_tanh")
    assert not np.allclose(usual, expected, rtol=0.5, atol=0)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_the_largest_values_neither_overflow_nor_warn(run: Callable[..., Any], kind: str) -> None:
    largest = np.finfo(np.float32).max
    gate = np.array([largest, -largest, 1e4, -1e4, 100.0, -100.0, 0.0], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = run(gated_activation, gate, np.ones_like(gate), kind=kind)
    assert np.allclose(actual, np.maximum(gate, 0.0), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_nan_stays_where_it_is(run: Callable[..., Any], dtype: DType, kind: str) -> None:
    gate, up = np.ones((2, 4), dtype), np.ones((2, 4), dtype)
    gate[0, 1] = up[1, 2] = np.nan
    actual = run(gated_activation, gate, up, kind=kind)
    assert np.argwhere(np.isnan(actual.astype(np.float32))).tolist() == [[0, 1], [1, 2]]


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="'relu'"):
        gated_activation(np.ones(2, np.float32), np.ones(2, np.float32), kind="relu")

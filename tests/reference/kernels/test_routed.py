"""Products of a router's choice, against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parity.ulp import spacing
from reference.formats import Array, DType
from reference.kernels.grouped_gated_linear import grouped_gated_linear
from reference.kernels.moe_dispatch import moe_dispatch
from reference.kernels.routed_gated_linear import routed_gated_linear
from reference.kernels.routed_linear import routed_linear
from tests.reference.kernels.helpers import assert_same_bits, normal

Run = Callable[..., Any]
IDS = np.array([[2, 0], [0, 0], [-1, 3], [1, 7], [4, -2]], np.int32)  # of 4 experts: some are elsewhere, one is twice
IS_HERE = (IDS >= 0) & (IDS < 4)


def assert_rounded_once(out: Array, exact: Array, magnitude: Array) -> None:
    bound = spacing(exact, out.dtype) / 2 + 4 * magnitude * 2.0**-23
    assert np.all(np.abs(out.astype(float) - exact) <= bound)
    assert np.any(np.abs(1.05 * out.astype(float) - exact) > bound), "the bound would let anything pass"


def test_gate_and_up_are_those_of_rows_that_are_brought_together_first(run: Run, dtype: DType) -> None:
    x, weight = normal(0, 5, 24, dtype=dtype), normal(1, 4, 14, 24, dtype=dtype, scale=0.3)
    out = run(routed_gated_linear, x, weight, IDS, kind="silu")
    offsets, src_token, row_of = moe_dispatch(IDS, 4, tile=4)
    grouped = run(grouped_gated_linear, x, weight, offsets, src_token, tile=4, kind="silu")
    assert out.dtype == dtype and not out[~IS_HERE].any()
    of_pairs = grouped[row_of[IS_HERE]].astype(float)
    assert np.all(np.abs(out[IS_HERE].astype(float) - of_pairs) <= spacing(of_pairs, out.dtype) + 1e-6)


@pytest.mark.parametrize("has_residual", [False, True])
def test_experts_are_weighted_and_added_in_order(run: Run, dtype: DType, has_residual: bool) -> None:
    x, weight = normal(2, 5, 2, 24, dtype=dtype), normal(3, 4, 7, 24, dtype=dtype)
    factors = np.random.default_rng(4).uniform(0.1, 1.0, IDS.shape).astype(np.float32)
    residual = normal(5, 5, 7, dtype=dtype) if has_residual else None
    exact = np.zeros((5, 7)) if residual is None else residual.astype(float)
    magnitude = np.abs(exact)
    for token, k in np.argwhere(IS_HERE):
        of_expert, row = weight[IDS[token, k]].astype(float), x[token, k].astype(float)
        exact[token] += factors[token, k] * (of_expert @ row)
        magnitude[token] += factors[token, k] * (np.abs(of_expert) @ np.abs(row))
    x[~IS_HERE], factors[~IS_HERE] = np.nan, np.nan
    out = run(routed_linear, x, weight, IDS, factors, residual)
    assert out.dtype == dtype
    assert_rounded_once(out, exact, magnitude)
    if residual is None:
        assert not out[4].any(), "none of its experts is here"
    else:
        assert_same_bits(out[4], residual[4])

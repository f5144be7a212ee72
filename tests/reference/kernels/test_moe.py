"""Router, dispatch, products and combination, each against plain loops and the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.ulp import oracle, rounded_once, spacing, ulp_error
from reference.formats import FLOAT8_E4M3, FP8_WEIGHT_BLOCK, Array, DType
from reference.kernels.grouped_linear import grouped_linear, grouped_linear_fp8
from reference.kernels.linear import linear_fp8
from reference.kernels.moe_combine import moe_combine
from reference.kernels.moe_dispatch import Dispatch, dispatch_rows, gather_rows, moe_dispatch
from reference.kernels.quantize import quantize_fp8
from reference.kernels.router_top_k import router_top_k
from tests.reference.kernels.helpers import assert_same_bits, normal

Run = Callable[..., Any]


# The router


def test_router_takes_the_likeliest_in_falling_order(run: Run, dtype: DType) -> None:
    logits = normal(0, 37, 64, dtype=dtype)
    ids, weights = run(router_top_k, logits, k=8, normalize=False)
    for row, chosen in zip(logits.astype(float), ids, strict=True):
        assert list(chosen) == sorted(range(64), key=lambda e: (-row[e], e))[:8]
    probabilities = np.exp(logits.astype(float))
    probabilities /= probabilities.sum(-1, keepdims=True)
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    assert ulp_error(weights, np.take_along_axis(probabilities, ids, -1)) < 8


def test_normalized_weights_are_divided_by_the_sum_of_the_chosen(run: Run) -> None:
    logits = normal(1, 9, 16)
    _, plain = run(router_top_k, logits, k=3, normalize=False)
    _, weights = run(router_top_k, logits, k=3, normalize=True)
    assert np.all(plain.sum(-1) < 0.99)
    assert ulp_error(weights, plain.astype(float) / plain.astype(float).sum(-1, keepdims=True)) < 4


def test_a_tie_goes_to_the_lower_expert(run: Run) -> None:
    ids, weights = run(router_top_k, np.zeros((2, 384), np.float32), k=8, normalize=True)
    assert np.array_equal(ids, [range(8)] * 2)
    assert np.allclose(weights, 0.125, rtol=1e-6, atol=0)
    ids, _ = run(router_top_k, np.array([[1, 2, -0.0, 2, 0.0, 2]], np.float32), k=6, normalize=False)
    assert ids.tolist() == [[1, 3, 5, 0, 2, 4]]


def test_order_survives_where_probabilities_round_to_the_same(run: Run) -> None:
    """e^-110 and e^-120 are both 0 in float32; the larger logit still comes first."""
    ids, _ = run(router_top_k, np.array([[0, -120, -110]], np.float32), k=3, normalize=False)
    assert ids.tolist() == [[0, 2, 1]]


def test_router_is_the_float64_oracle_rounded() -> None:
    logits = normal(2, 50, 128, scale=3)
    ids, weights = router_top_k(logits, 8, normalize=True)
    exact_ids, exact = oracle(router_top_k, logits, k=8, normalize=True)
    assert np.array_equal(ids, exact_ids) and exact.dtype == np.float64
    assert ulp_error(weights, exact) < 8


def test_a_row_of_nan_gives_nan_weights_and_valid_experts(run: Run) -> None:
    logits = normal(3, 2, 8)
    logits[1, 5] = np.nan
    with np.errstate(invalid="ignore"):
        ids, weights = run(router_top_k, logits, k=3, normalize=True)
    assert np.all(np.isnan(weights[1])) and np.all(np.isfinite(weights[0]))
    assert np.all((ids >= 0) & (ids < 8))


# The dispatch


def plain_dispatch(expert_ids: Array, num_experts: int, tile: int) -> Dispatch:
    """Append each (token, k) to its expert's list; pad the lists; lay them end to end."""
    members: list[list[tuple[int, int]]] = [[] for _ in range(num_experts)]
    for t, chosen in enumerate(expert_ids.tolist()):
        for k, expert in enumerate(chosen):
            if 0 <= expert < num_experts:
                members[expert].append((t, k))
    offsets = [0]
    src_token: list[int] = []
    row_of = np.full(expert_ids.shape, -1, np.int32)
    for pairs in members:
        for t, k in pairs:
            row_of[t, k] = len(src_token)
            src_token.append(t)
        src_token += [-1] * (-len(src_token) % tile)
        offsets.append(len(src_token))
    rows = dispatch_rows(expert_ids.shape[0], expert_ids.shape[1], num_experts, tile=tile)
    assert len(src_token) <= rows
    src_token += [-1] * (rows - len(src_token))
    return Dispatch(np.array(offsets, np.int32), np.array(src_token, np.int32), row_of)


def assert_equal_dispatch(actual: Dispatch, expected: Dispatch) -> None:
    for name, array, right in zip(Dispatch._fields, actual, expected, strict=True):
        assert array.dtype == np.int32 and array.shape == right.shape, name
        assert np.array_equal(array, right), name


@st.composite
def routings(draw: st.DrawFn) -> tuple[Array, int, int]:
    tokens, k, experts = draw(st.integers(0, 12)), draw(st.integers(0, 4)), draw(st.integers(1, 6))
    ids = draw(st.lists(st.integers(-2, experts + 1), min_size=tokens * k, max_size=tokens * k))
    return np.array(ids, np.int32).reshape(tokens, k), experts, draw(st.sampled_from([1, 4, 16]))


@given(routings())
@settings(max_examples=300, deadline=None)
def test_dispatch_is_the_plain_loop(routing: tuple[Array, int, int]) -> None:
    ids, num_experts, tile = routing
    assert_equal_dispatch(moe_dispatch(ids, num_experts, tile=tile), plain_dispatch(ids, num_experts, tile))


ROUTINGS = {
    "no tokens": (np.zeros((0, 2)), 4, 4),
    "one token": (np.array([[2]]), 4, 16),
    "as the docstring shows": (np.array([[1, 0], [1, 2], [1, 0]]), 3, 4),
    "one expert again and again": (np.array([[3, 3, 3], [3, 3, 3]]), 8, 4),
    "nothing routed": (np.full((3, 2), -1), 4, 4),
    "some unrouted": (np.array([[-1, 2], [0, -1], [5, 0]]), 4, 4),
    "more experts than rows": (np.array([[383, 0]]), 384, 16),
    "no experts a token": (np.zeros((3, 0)), 4, 4),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_dispatch_of(name: str, run: Run) -> None:
    ids, num_experts, tile = ROUTINGS[name]
    ids = ids.astype(np.int32)
    actual = run(moe_dispatch, ids, num_experts=num_experts, tile=tile)
    assert_equal_dispatch(actual, plain_dispatch(ids, num_experts, tile))


def test_the_example_of_the_docstring() -> None:
    dispatch = moe_dispatch(np.array([[1, 0], [1, 2], [1, 0]], np.int32), 3, tile=4)
    assert dispatch.expert_offsets.tolist() == [0, 4, 8, 12]
    assert dispatch.src_token.tolist() == [0, 2, -1, -1, 0, 1, 2, -1, 1, -1, -1, -1]
    assert dispatch.row_of.tolist() == [[4, 0], [5, 8], [6, 1]]


@pytest.mark.parametrize("tile", [1, 4, 16])
@pytest.mark.parametrize("routed", [1, 5, 6, 7, 40, 41])
def test_no_row_can_be_spared(routed: int, tile: int) -> None:
    """One row for each expert but the last, which gets the rest, fills the static capacity exactly."""
    ids = np.minimum(np.arange(routed, dtype=np.int32), 5)[:, None]
    dispatch = moe_dispatch(ids, 6, tile=tile)
    assert dispatch.expert_offsets[-1] == dispatch_rows(routed, 1, 6, tile=tile) == dispatch.src_token.size


def test_dispatch_under_vmap() -> None:
    ids = np.random.default_rng(0).integers(-1, 4, (3, 5, 2), dtype=np.int32)
    mapped = jax.jit(jax.vmap(lambda routing: moe_dispatch(routing, 4, tile=4)))(ids)
    for b in range(3):
        assert_equal_dispatch(Dispatch(*(np.asarray(array[b]) for array in mapped)), plain_dispatch(ids[b], 4, 4))


# Gather, products, combination


def test_gather_copies_tokens_and_pads_with_zero(run: Run, dtype: DType) -> None:
    x = normal(0, 3, 8, dtype=dtype)
    x[1, 2] = np.nan
    rows = run(gather_rows, x, np.array([2, -1, 1, 2, -1], np.int32))
    assert_same_bits(rows, np.stack([x[2], np.zeros(8, dtype), x[1], x[2], np.zeros(8, dtype)]))


def assert_sum_of_products(actual: Array, exact: Array, magnitude: Array) -> None:
    """Within one rounding to actual's dtype and 2 x 2^-23 of the sum of |x w|."""
    bound = spacing(exact, actual.dtype) / 2 + 2 * magnitude * 2.0**-23
    assert np.all(np.abs(actual.astype(float) - exact) <= bound)
    assert np.any(np.abs(1.05 * actual.astype(float) - exact) > bound), "the bound would let anything pass"


OFFSETS = np.array([0, 4, 4, 12, 12], np.int32)  # experts 1 and 3 are empty; rows 12 to 19 belong to none


def test_each_row_meets_its_experts_weight(run: Run, dtype: DType) -> None:
    x, weight = normal(0, 20, 33, dtype=dtype), normal(1, 4, 7, 33, dtype=dtype)
    x[12:] = np.nan
    weight[[1, 3]] = np.nan
    y = run(grouped_linear, x, weight, OFFSETS, tile=4)
    assert y.dtype == dtype
    for begin, end, expert in ((0, 4, 0), (4, 12, 2)):
        rows, transposed = x[begin:end].astype(float), weight[expert].astype(float).T
        assert_sum_of_products(y[begin:end], rows @ transposed, np.abs(rows) @ np.abs(transposed))
    assert not y[12:].any(), "rows of no expert are 0, whatever they hold"


def test_padding_rows_give_zero(run: Run, dtype: DType) -> None:
    ids = np.array([[0, 2], [2, -1]], np.int32)
    dispatch = moe_dispatch(ids, 3, tile=4)
    rows = gather_rows(normal(0, 2, 8, dtype=dtype), dispatch.src_token)
    y = run(grouped_linear, rows, normal(1, 3, 5, 8, dtype=dtype), dispatch.expert_offsets, tile=4)
    padding = dispatch.src_token < 0
    assert padding.any() and not y[padding].any() and np.all(y[~padding].any(axis=-1))


@pytest.mark.parametrize(("out_features", "in_features"), [(128, 256), (7, 33), (200, 130)])
def test_fp8_rows_are_linear_fp8_of_their_expert(run: Run, out_features: int, in_features: int) -> None:
    x, weight = normal(0, 20, in_features, dtype=ml_dtypes.bfloat16), normal(1, 4, out_features, in_features)
    weight *= np.array([1, 10, 0.1, 1], np.float32)[:, None, None]
    parts = [quantize_fp8(w, block=FP8_WEIGHT_BLOCK) for w in weight]
    codes, scale_inv = np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])
    assert codes.dtype == FLOAT8_E4M3.dtype
    y = run(grouped_linear_fp8, x, codes, scale_inv, OFFSETS, tile=4)
    for begin, end, expert in ((0, 4, 0), (4, 12, 2)):
        exact = oracle(linear_fp8, x[begin:end], codes[expert], scale_inv[expert].astype(np.float64))
        assert ulp_error(y[begin:end], exact) < rounded_once(x.dtype, 64)
    assert y.dtype == x.dtype and not y[12:].any()


def test_combine_is_the_weighted_sum_rounded_once(run: Run, dtype: DType) -> None:
    rows, weights = normal(0, 12, 16, dtype=dtype), np.abs(normal(1, 5, 3))
    row_of = np.array([[0, 3, 11], [2, -1, 4], [-1, -1, -1], [7, 7, 7], [1, 0, -1]], np.int32)
    weights[1, 1] = np.nan  # of no expert: never read
    exact = np.zeros((5, 16))
    for t in range(5):
        for k in range(3):
            if row_of[t, k] >= 0:
                exact[t] += weights[t, k].astype(float) * rows[row_of[t, k]].astype(float)
    y = run(moe_combine, rows, row_of, weights)
    assert y.dtype == dtype and not y[2].any()
    assert ulp_error(y, exact) < rounded_once(dtype, 16)


def test_combine_adds_in_the_order_of_k() -> None:
    """1 + 2^-24 + 2^-24 is 1 from the left and more than 1 from the right."""
    rows = np.array([[1.0], [2.0**-24], [2.0**-24]], np.float32)
    row_of, weights = np.array([[0, 1, 2], [2, 1, 0]], np.int32), np.ones((2, 3), np.float32)
    assert moe_combine(rows, row_of, weights)[:, 0].tolist() == [1.0, 1.0 + 2.0**-23]

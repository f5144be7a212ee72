"""The fused operation is its three kernels after one another, to the bit, their rounding points included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference.formats import DType
from reference.kernels.kv_cache import kv_write
from reference.kernels.qk_norm import qk_norm
from reference.kernels.qk_norm_rope_kv_write import qk_norm_rope_kv_write
from reference.kernels.rope import rope
from reference.model.config import RopeConfig
from reference.model.rope_table import rope_table
from tests.reference.kernels.helpers import assert_same_bits, normal, run_numpy

EPS = 1e-6
DIM, BLOCK_SIZE = 16, 4


def arguments(slots: list[int], dtype: Any) -> list[Any]:
    """4 heads of q and 2 of k and v, at positions that are their slots' offsets; caches of 3 blocks full of NaN."""
    tokens = len(slots)
    caches = [np.full((3, 2, BLOCK_SIZE, DIM), np.nan).astype(dtype) for _ in range(2)]
    return [
        normal(0, tokens, 4, DIM, dtype=dtype),
        normal(1, tokens, 2, DIM, dtype=dtype),
        normal(2, tokens, 2, DIM, dtype=dtype),
        normal(3, DIM, dtype=dtype),
        normal(4, DIM, dtype=dtype),
        np.array([max(slot, 0) % BLOCK_SIZE for slot in slots], np.int32),
        *rope_table(RopeConfig(1e4), DIM, BLOCK_SIZE),
        *caches,
        np.array(slots, np.int64),
    ]


@pytest.mark.parametrize("slots", [[], [5], [4, 5, 6], [8, -1, 3]])
def test_it_is_the_three_kernels(run: Callable[..., Any], dtype: DType, slots: list[int]) -> None:
    q, k, v, q_weight, k_weight, positions, cos, sin, k_cache, v_cache, slot_mapping = inputs = arguments(slots, dtype)
    normed = qk_norm(q, k, q_weight, k_weight, EPS)
    turned_q, turned_k = (rope(x, positions, cos, sin) for x in normed)
    expected = (turned_q, *kv_write(turned_k, v, k_cache, v_cache, slot_mapping))
    actual = run(qk_norm_rope_kv_write, *inputs, eps=EPS)
    for output, one in zip(actual, expected, strict=True):
        assert output.dtype == dtype
        if run is run_numpy:
            assert_same_bits(output, one)
        else:  # XLA computes in another order than NumPy, and may round to the neighbour
            assert np.allclose(output.astype(np.float32), one.astype(np.float32), rtol=2e-2, atol=1e-2, equal_nan=True)


def test_the_norm_is_rounded_before_the_rotation() -> None:
    inputs = arguments([0, 1, 2, 3], ml_dtypes.bfloat16)
    q, _, _ = run_numpy(qk_norm_rope_kv_write, *inputs, eps=EPS)
    in_float32 = [x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x for x in inputs]
    once, _, _ = run_numpy(qk_norm_rope_kv_write, *in_float32, eps=EPS)
    assert not np.array_equal(q, once.astype(ml_dtypes.bfloat16))


def test_opened_blocks_are_cleared_and_others_kept() -> None:
    _, k_cache, v_cache = run_numpy(qk_norm_rope_kv_write, *arguments([4, 5], np.float32), eps=EPS)
    for cache in (k_cache, v_cache):
        assert np.isnan(cache[[0, 2]]).all()
        assert (cache[1, :, :2] != 0).all()
        assert (cache[1, :, 2:] == 0).all()

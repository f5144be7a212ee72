"""Gate and up of a mixture of experts, against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parity.ulp import spacing
from reference.formats import Array, DType
from reference.kernels.activation import gated_activation
from reference.kernels.grouped_gated_linear import grouped_gated_linear
from tests.reference.kernels.helpers import normal

Run = Callable[..., Any]
OFFSETS = np.array([0, 4, 4, 12, 16], np.int32)  # the second expert is empty; rows 16 to 19 belong to none
SRC_TOKEN = np.array([2, 0, 1, -1, 4, 3, 2, 1, 0, -1, -1, -1, 4, -1, -1, -1, -1, -1, -1, -1], np.int32)


def plain(x: Array, weight: Array, kind: str) -> tuple[Array, Array]:
    """f64 [rows, I]: the results, and how far a relative error of 1 in each product would change them."""
    exact, magnitude = (np.zeros((len(SRC_TOKEN), weight.shape[1] // 2)) for _ in range(2))
    for row, token in enumerate(SRC_TOKEN):
        if token < 0:
            continue
        of_expert = weight[np.searchsorted(OFFSETS, row, side="right") - 1].astype(float)
        products, sizes = of_expert @ x[token].astype(float), np.abs(of_expert) @ np.abs(x[token].astype(float))
        (gate, up), (gate_size, up_size) = np.split(products, 2), np.split(sizes, 2)
        activated = gated_activation(gate, np.ones_like(gate), kind=kind)
        exact[row] = activated * up
        magnitude[row] = 1.13 * gate_size * np.abs(up) + np.abs(activated) * up_size
    return exact, magnitude


@pytest.mark.parametrize("kind", ["silu", "gelu"])
def test_each_token_meets_its_experts_gate_and_up(run: Run, dtype: DType, kind: str) -> None:
    x, weight = normal(0, 5, 24, dtype=dtype), normal(1, 4, 14, 24, dtype=dtype, scale=0.3)
    weight[1] = np.nan
    out = run(grouped_gated_linear, x, weight, OFFSETS, SRC_TOKEN, tile=4, kind=kind)
    exact, magnitude = plain(x, weight, kind)
    assert out.dtype == dtype and out.shape == exact.shape
    assert not out[SRC_TOKEN < 0].any(), "padding, and rows of no expert, are 0"
    bound = spacing(exact, out.dtype) / 2 + 4 * magnitude * 2.0**-23  # one rounding: of neither gate nor up
    assert np.all(np.abs(out.astype(float) - exact) <= bound)
    assert np.any(np.abs(1.05 * out.astype(float) - exact) > bound), "the bound would let anything pass"

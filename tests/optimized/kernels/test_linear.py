"""What the host code of products for few rows refuses, and what it launches. Nothing is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from optimized.compile.arch import SM_90A
from optimized.device import CompileOnly, Outline
from optimized.kernels.gated_linear import GatedLinear, gated_linear
from optimized.kernels.linear import Linear, linear
from optimized.kernels.vocabulary_head import VocabularyHeadKernel, vocabulary_head


class Launches(CompileOnly):
    """Keeps the kernels."""

    def __init__(self) -> None:
        self.kernels: list[Any] = []
        super().__init__(SM_90A, lambda kernel, _: self.kernels.append(kernel))

    def tensor(self, *shape: int, dtype: str = "bfloat16", **place: Any) -> Outline:
        return Outline(shape, dtype, self, **{"address": 256, **place})


def test_each_operation_launches_its_kernel() -> None:
    on = Launches()
    linear(on.tensor(3, 64), on.tensor(48, 64), on.tensor(48, dtype="float32"), on.tensor(3, 48), pdl=True)
    gated_linear(on.tensor(3, 64), on.tensor(48, 64), kind="silu", norm_weight=on.tensor(64), eps=1e-6)
    results = vocabulary_head(on.tensor(3, 64), on.tensor(48, 64), logits=False, token_ids=True)
    assert [type(one) for one in on.kernels] == [Linear, GatedLinear, VocabularyHeadKernel]
    assert on.kernels[0].pdl and not on.kernels[1].pdl
    assert (on.kernels[1].out_features, on.kernels[1].has_norm) == (24, True)
    assert (results.logits, results.log_sum_exp) == (None, None)
    assert results.token_ids is not None and results.token_ids.shape == (3,)


def test_no_rows_launch_nothing() -> None:
    on = Launches()
    assert linear(on.tensor(0, 64), on.tensor(48, 64)).shape == (0, 48)
    assert gated_linear(on.tensor(0, 64), on.tensor(48, 64), kind="gelu").shape == (0, 24)
    assert vocabulary_head(on.tensor(0, 64), on.tensor(48, 64)).logits.shape == (0, 48)
    assert on.kernels == []


@pytest.mark.parametrize(
    ("strides", "address", "access"),
    [((64, 1), 256, 16), ((72, 1), 256, 16), ((68, 1), 256, 8), ((66, 1), 256, 4), ((65, 1), 256, 2), ((64, 1), 6, 2)],
)
def test_copies_are_as_wide_as_places_allow(strides: tuple[int, int], address: int, access: int) -> None:
    on = Launches()
    linear(on.tensor(3, 64, strides=strides, address=address), on.tensor(48, 64))
    linear(on.tensor(3, 64), on.tensor(48, 64, strides=strides, address=address))
    assert [(one.x_access, one.weight_access) for one in on.kernels] == [(access, 16), (16, access)]


def test_many_rows_are_left_to_another_kernel_unless_they_are_to_be_invariant() -> None:
    on = Launches()
    for rows, invariant in ((32, False), (33, True), (300, True)):
        linear(on.tensor(rows, 64), on.tensor(48, 64), invariant=invariant)
    assert [type(one) for one in on.kernels] == [Linear] * 3
    linear(on.tensor(33, 64), on.tensor(48, 64))  # cuBLAS, which is not launched by an outline
    assert len(on.kernels) == 3


def test_what_does_not_fit_is_refused() -> None:
    on = Launches()
    x, weight = on.tensor(3, 64), on.tensor(48, 64)
    with pytest.raises(ValueError, match=r"weight is bfloat16 \[48, 32\]; it must be bfloat16 \[48, 64\]"):
        linear(x, on.tensor(48, 32))
    with pytest.raises(TypeError, match=r"x is float32 .* it must be bfloat16 or float16"):
        linear(on.tensor(3, 64, dtype="float32"), weight)
    with pytest.raises(TypeError, match="normalise it with rms_norm first"):
        half = {"dtype": "float16"}
        linear(on.tensor(3, 64, **half), on.tensor(48, 64, **half), norm_weight=on.tensor(64, **half))
    with pytest.raises(ValueError, match="up to 64 rows are normalised"):
        linear(on.tensor(65, 64), weight, norm_weight=on.tensor(64))
    with pytest.raises(ValueError, match="gate and up must have as many"):
        gated_linear(x, on.tensor(47, 64), kind="silu")
    with pytest.raises(ValueError, match="unknown activation 'relu'"):
        gated_linear(x, weight, kind="relu")
    with pytest.raises(ValueError, match="nothing is asked for"):
        vocabulary_head(x, weight, logits=False)
    with pytest.raises(ValueError, match="found for up to 64 rows; these are 65"):
        vocabulary_head(on.tensor(65, 64), weight, token_ids=True)
    with pytest.raises(ValueError, match="rows must not overlap"):
        linear(x, weight, out=on.tensor(3, 48, strides=(40, 1)))
    assert on.kernels == []

"""What the host code of products for few rows refuses, and what it launches. Nothing is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from optimized.compile.arch import SM_90A
from optimized.device import CompileOnly, Outline
from optimized.kernels.few_rows_launch import access_of, strides_of
from optimized.kernels.gated_linear import GatedLinear, gated_linear
from optimized.kernels.linear import Linear, linear
from optimized.kernels.linear_many_rows_gemm import ManyRowsGemm
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


@pytest.mark.parametrize("rows", [33, 300])
def test_many_rows_that_lie_where_quack_does_not_take_them_are_cublas_or_few_rows_several_times(rows: int) -> None:
    on = Launches()
    odd = on.tensor(rows, 99), on.tensor(48, 99)
    gated_linear(*odd, kind="silu")
    linear(*odd, on.tensor(48), on.tensor(rows, 48))
    linear(*odd, on.tensor(48, dtype="float32"))
    assert [type(one) for one in on.kernels] == [GatedLinear]  # which cuBLAS does not do
    on.kernels.clear()
    gated_linear(on.tensor(rows, 96), on.tensor(48, 96), kind="silu")
    assert [type(one) for one in on.kernels] == [ManyRowsGemm]


def test_no_copy_is_wider_than_all_that_it_is_for() -> None:
    """An axis of one element has no next, whatever its stride is: that row is as if it were alone."""
    on = Launches()
    assert strides_of(on.tensor(3, 64, strides=(72, 1))) == (72,)
    assert strides_of(on.tensor(1, 64, strides=(71, 1))) == (64,)
    assert strides_of(on.tensor(2, 1, 64, strides=(71, 3, 1))) == (71, 64)
    assert strides_of(on.tensor(1, 2, 64, strides=(7, 72, 1))) == (144, 72)
    assert access_of(on.tensor(1, 64, strides=(71, 1))) == 16
    assert access_of(on.tensor(2, 1, 64, strides=(71, 3, 1))) == 2
    assert access_of(on.tensor(2, 64), on.tensor(64, address=260)) == 4


def test_memory_that_is_read_is_not_written() -> None:
    on = Launches()
    x, weight, residual = on.tensor(3, 64), on.tensor(64, 64, address=512), on.tensor(3, 64, address=1024)
    assert linear(x, weight, None, residual, out=residual) is residual
    for operation, rest in ((linear, {}), (gated_linear, {"kind": "silu"})):
        of = weight if operation is linear else on.tensor(128, 64, address=512)
        with pytest.raises(ValueError, match="out and x are the same memory; x is read while out is written"):
            operation(x, of, **rest, out=x)
    assert len(on.kernels) == 1


def test_nothing_is_taken_and_ignored() -> None:
    on = Launches()
    x, weight = on.tensor(3, 64), on.tensor(48, 64)
    for given in ({"eps": 1e-6}, {"weight_bias": 1.0}):
        for operation, rest in ((linear, {}), (gated_linear, {"kind": "silu"}), (vocabulary_head, {})):
            with pytest.raises(ValueError, match="which are a norm's, and there is no norm_weight"):
                operation(x, weight, **rest, **given)
    with pytest.raises(ValueError, match=r"out.token_ids is given, and token_ids is not asked for"):
        vocabulary_head(x, weight, out=(None, on.tensor(3, dtype="int32"), None))
    assert on.kernels == []


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

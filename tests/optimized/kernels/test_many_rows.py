"""Which kernel computes products of many rows and attention of prompts, and what is refused. Nothing is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.build import CompileError
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly, Outline
from optimized.kernels import grouped_linear_many_rows as grouped
from optimized.kernels import linear_many_rows as dense
from optimized.kernels import prefill_attention as prefill
from optimized.kernels.linear_many_rows_gemm import TILINGS, ManyRowsGemm, Tiling, fits_tiling
from optimized.kernels.prefill_attention_kernel import PrefillAttention
from optimized.tuned import CUBLAS, Measured, Tuned

launched: list[tuple[Kernel, tuple[Any, ...]]] = []
K, N, T = 512, 256, 300


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Tuned]]:
    """What is known of a chip: nothing, unless a test says something."""
    known = {"all": Tuned([])}
    for module in (dense, grouped, prefill):
        monkeypatch.setattr(module, "tuned_for", lambda *_: known["all"])
    launched.clear()
    yield known
    launched.clear()


def device(arch: Arch = SM_90A) -> CompileOnly:
    return CompileOnly(arch, lambda kernel, tensors: launched.append((kernel, tensors)))


def of(*shape: int, on: CompileOnly | None = None, dtype: str = "bfloat16", **named: Any) -> Outline:
    return Outline(shape, dtype, on or device(), **named)


def linear(rows: int = T, *, arch: Arch = SM_90A, **named: Any) -> Outline:
    where = device(arch)
    return dense.linear_many_rows(of(rows, K, on=where), of(N, K, on=where), **named)


def the_kernel() -> ManyRowsGemm:
    ((kernel, _),) = launched
    assert isinstance(kernel, ManyRowsGemm)
    return kernel


def test_a_tiling_is_what_it_is_written_as() -> None:
    for tilings in TILINGS.values():
        assert [Tiling.parse(str(one)) for one in tilings] == list(tilings)
        assert len(set(tilings)) == len(tilings)
    with pytest.raises(ValueError, match="'128x192' is no tiling; one is written like '128x192 2x1 pingpong'"):
        Tiling.parse("128x192")


def test_where_nothing_was_measured_cublas_computes_what_it_can() -> None:
    assert linear().shape == (T, N)
    assert launched == []
    linear(bias=of(N), residual=of(T, N))  # which cublas does in two launches, and quack's in few tiles
    assert launched == []
    linear(50 * T, bias=of(N), residual=of(50 * T, N))
    assert the_kernel().has_residual and the_kernel().bias_dtype == "bfloat16"
    launched.clear()
    assert linear(activation="silu").shape == (T, N // 2)
    assert the_kernel().is_gated


@pytest.mark.parametrize("arch", [SM_90A, SM_100A])
def test_an_invariant_product_has_one_kernel_for_all_numbers_of_rows(arch: Arch) -> None:
    for rows in (1, 64, 65, 300, 5000):
        linear(rows, arch=arch, invariant=True)
    kernels = {kernel for kernel, _ in launched}
    assert len(kernels) == 1 and len(launched) == 5
    assert next(iter(kernels)).constants["generation"] == arch.compute_capability[0]


def test_the_fastest_that_was_measured_is_taken(measured: dict[str, Tuned]) -> None:
    first, second = "quack 64x192 1x1 pingpong", "quack 128x256 2x1"
    few = Measured("linear", (N, K), 128, "bfloat16", {CUBLAS: 2.0, first: 1.0, second: 3.0})
    many = Measured("linear", (N, K), 4096, "bfloat16", {CUBLAS: 1.0, first: 3.0, second: 1.1})
    measured["all"] = Tuned([few, many])
    linear(100)
    assert str(the_kernel().tiling) == first.removeprefix("quack ")
    launched.clear()
    linear(5000)
    assert launched == []  # cublas
    added = Measured("linear_residual", (N, K), 4096, "bfloat16", {CUBLAS: 1.2, first: 3.0, second: 1.1})
    measured["all"] = Tuned([few, many, added])
    linear(5000, bias=of(N), residual=of(5000, N))
    assert str(the_kernel().tiling) == second.removeprefix("quack ")
    launched.clear()
    linear(100, invariant=True)
    linear(5000, invariant=True)
    assert len({kernel for kernel, _ in launched}) == 1


def test_rows_that_the_copy_engine_does_not_take_are_left_to_cublas() -> None:
    for x in (of(T, K, address=2), of(T, K, strides=(K + 1, 1))):
        dense.linear_many_rows(x, of(N, K))
        assert launched == []
        with pytest.raises(ValueError, match=r"it and each of its rows must begin at multiples of 16 bytes"):
            dense.linear_many_rows(x, of(N, K), choice=dense.usual_choice(device()))


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"activation": "gelu"}, "the activation 'gelu' is not fused"),
        ({"activation": "silu", "bias": of(N)}, "neither bias nor residual"),
        ({"choice": "cublas", "invariant": True}, "is not invariant"),
        ({"choice": "cublas", "activation": "silu"}, "no gated activation"),
        ({"choice": ""}, "unknown choice ''"),
        ({"choice": "torch"}, "unknown choice 'torch'; known are 'cublas' and 'quack TILING'"),
        ({"choice": "quack 128x208 2x1", "activation": "silu"}, "a multiple of 32"),
        ({"bias": of(N + 1)}, "bias is"),
        ({"residual": of(T, N + 1)}, "residual is"),
    ],
)
def test_what_does_not_fit_is_told(named: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        linear(**named)
    assert launched == []


def test_of_no_rows_nothing_is_launched() -> None:
    assert linear(0, choice=dense.usual_choice(device())).shape == (0, N)
    assert launched == []


E, R = 4, 384


def experts(**named: Any) -> Outline:
    where = device()
    x, weight = of(R, K, on=where), of(E, N, K, on=where)
    return grouped.grouped_linear_many_rows(x, weight, of(E + 1, on=where, dtype="int32"), **named)


def test_the_forms_of_a_grouped_product() -> None:
    assert experts().shape == (R, N)
    assert the_kernel().is_grouped and not the_kernel().gathers
    launched.clear()
    assert experts(src_token=of(50, dtype="int32"), activation="silu").shape == (50, N // 2)
    assert the_kernel().gathers and the_kernel().is_gated


def test_a_grouped_product_passes_over_what_cannot(measured: dict[str, Tuned]) -> None:
    wide, slim = "quack 128x128 1x2 pingpong", "quack 128x128 2x1 pingpong"
    times = {"torch": 1.0, wide: 2.0, slim: 3.0}
    measured["all"] = Tuned([Measured("grouped_linear", (E, N, K), R, "bfloat16", times)])
    experts()
    assert launched == []  # torch
    experts(out=of(R, N))
    assert str(the_kernel().tiling) == wide.removeprefix("quack ")
    launched.clear()
    experts(src_token=of(50, dtype="int32"))
    assert str(the_kernel().tiling) == slim.removeprefix("quack ")
    assert not fits_tiling(Tiling.parse(wide.removeprefix("quack ")), 9, is_gated=False, gathers=True)
    with pytest.raises(ValueError, match="torch neither gathers nor gates, is not invariant, takes no out"):
        experts(choice="torch", out=of(R, N))
    half = of(R, K, dtype="float16"), of(E, N, K, dtype="float16"), of(E + 1, dtype="int32")
    with pytest.raises(ValueError, match="torch's grouped product is of bfloat16; these are float16"):
        grouped.grouped_linear_many_rows(*half, choice="torch")
    assert experts(choice="torch").shape == (R, N), "of outlines it launches nothing"
    with pytest.raises(ValueError, match="clusters are one tile wide"):
        experts(choice=wide, src_token=of(50, dtype="int32"))


def attend(
    heads: int = 8, kv_heads: int = 2, head_dim: int = 128, bs: int = 128, arch: Arch = SM_90A, **named: Any
) -> Any:
    where = device(arch)
    q, cache = of(T, heads, head_dim, on=where), of(9, kv_heads, bs, head_dim, on=where)
    table, lens = of(3, 4, on=where, dtype="int32"), of(3, on=where, dtype="int32")
    named = {"clear": False} | named
    prefill.prefill_attention(q, cache, cache, table, of(4, on=where, dtype="int32"), lens, **named)
    return launched[-1][0]


@pytest.mark.parametrize(
    ("head_dim", "bs", "arch", "tiles", "reads_blocks"),
    [
        (64, 128, SM_90A, (192, 128), True),
        (128, 128, SM_90A, (128, 128), True),
        (128, 16, SM_90A, (128, 128), False),
        (256, 128, SM_90A, (128, 80), False),
        (256, 64, SM_90A, (128, 64), True),
        (256, 128, SM_100A, (128, 128), True),
    ],
)
def test_the_tiles_of_attention(head_dim: int, bs: int, arch: Arch, tiles: tuple[int, int], reads_blocks: bool) -> None:
    kernel = attend(head_dim=head_dim, bs=bs, arch=arch)
    assert isinstance(kernel, PrefillAttention)
    assert ((kernel.tile_m, kernel.tile_n), kernel.reads_blocks) == (tiles, reads_blocks)
    assert kernel.scale == head_dim**-0.5
    assert kernel == replace(attend(head_dim=head_dim, bs=bs, arch=arch, scale=0.5), scale=head_dim**-0.5)


@pytest.mark.parametrize(("heads", "kv_heads", "packs"), [(8, 2, True), (5, 1, False), (3, 3, False), (16, 1, True)])
def test_heads_are_packed_where_they_fill_a_tile(heads: int, kv_heads: int, packs: bool) -> None:
    assert attend(heads, kv_heads).packs_heads == packs
    assert not attend(heads, kv_heads, choice="flash by head").packs_heads


def test_attention_that_does_not_fit_is_told() -> None:
    for sizes, told in (
        ({"head_dim": 96}, "head_dim is 96; it must be one of 64, 128, 256"),
        ({"heads": 7}, "7 heads of q cannot be shared among 2 of k evenly"),
        ({"choice": "cublas"}, "unknown choice 'cublas'; known are 'flash packed', 'flash by head'"),
    ):
        with pytest.raises(ValueError, match=told):
            attend(**sizes)  # type: ignore[arg-type]
    assert launched == []


def test_rows_of_no_request_are_cleared_if_asked() -> None:
    attend(clear=True)
    assert [type(kernel).__name__ for kernel, _ in launched] == ["PrefillAttention", "ClearRows"]


@pytest.mark.parametrize("error", [CompileError("no registers are left"), RuntimeError("no registers are left")])
def test_a_choice_that_fails_is_named_beside_another(error: Exception) -> None:
    def fails(*_: Any) -> None:
        raise error

    where = CompileOnly(SM_90A, fails)
    x, weight, experts_of = of(T, K, on=where), of(N, K, on=where), of(E, N, K, on=where)
    usual, second = (f"quack {one}" for one in TILINGS[9][:2])
    offsets = of(E + 1, on=where, dtype="int32")
    cache, numbers = of(9, 2, 128, 128, on=where), of(4, on=where, dtype="int32")
    table, lens = of(3, 4, on=where, dtype="int32"), of(3, on=where, dtype="int32")
    for name, choice, instead, call in (
        ("linear_many_rows", usual, CUBLAS, lambda: dense.linear_many_rows(x, weight, choice=usual)),
        ("linear_many_rows", usual, second, lambda: dense.linear_many_rows(x, weight, activation="silu")),
        ("linear_many_rows", usual, second, lambda: dense.linear_many_rows(x, weight, invariant=True)),
        ("linear_many_rows", second, usual, lambda: dense.linear_many_rows(x, weight, invariant=True, choice=second)),
        ("grouped_linear_many_rows", usual, second, lambda: grouped.grouped_linear_many_rows(x, experts_of, offsets)),
        (
            "prefill_attention",
            "flash packed",
            "flash by head",
            lambda: prefill.prefill_attention(of(T, 8, 128, on=where), cache, cache, table, numbers, lens),
        ),
    ):
        told = f"{name}: '{choice}' failed: no registers are left; pass choice='{instead}', or have `diptych tune`"
        with pytest.raises(RuntimeError, match=re.escape(told)) as raised:
            call()
        assert raised.value.__cause__ is error


def test_torchs_settings_are_what_they_were() -> None:
    """Inside, sums are whole and in float32; afterwards, and after an error, the user's settings are back."""
    import torch

    from optimized.kernels.linear_many_rows_cublas import sums_in_float32

    settings = torch.backends.cuda.matmul
    names = [
        f"allow_{dtype}_reduced_precision_reduction{part}" for dtype in ("bf16", "fp16") for part in ("", "_split_k")
    ] + ["allow_fp16_accumulation"]

    def now() -> dict[str, bool]:
        return {name: getattr(settings, name) for name in names}

    usual = now()
    for bf16 in ((True, True), (False, True), (False, False)):
        settings.allow_bf16_reduced_precision_reduction = bf16
        before = now()
        with sums_in_float32():
            inside = now()
            assert not inside["allow_bf16_reduced_precision_reduction"]
            assert not inside["allow_fp16_reduced_precision_reduction"]
            assert inside["allow_bf16_reduced_precision_reduction_split_k"] == bf16[1]
        assert now() == before
        with pytest.raises(KeyError), sums_in_float32():
            raise KeyError
        assert now() == before
    settings.allow_bf16_reduced_precision_reduction = (
        usual["allow_bf16_reduced_precision_reduction"],
        usual["allow_bf16_reduced_precision_reduction_split_k"],
    )
    assert now() == usual


def test_what_cublas_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors of the host, where torch has products of its own, but none that widens."""
    import torch

    from optimized.kernels.linear_many_rows_cublas import cublas_product

    def mm(x: torch.Tensor, weight: torch.Tensor, *, out_dtype: Any = None, out: Any = None) -> torch.Tensor:
        product = (x.double() @ weight.double()).to(out_dtype or x.dtype)
        return product if out is None else out.copy_(product)

    monkeypatch.setattr(torch, "mm", mm)
    torch.manual_seed(0)  # a sum near the middle of two bfloat16 may be rounded either way
    x, weight = torch.randn(5, 7).bfloat16(), torch.randn(3, 7).bfloat16()
    residual = torch.randn(5, 3).bfloat16()
    for bias in (None, torch.randn(3).bfloat16(), torch.randn(3)):
        for other in (None, residual):
            out = torch.empty(5, 3).bfloat16()
            cublas_product(x, weight, bias, other, out)
            exact = x.double() @ weight.double().T + sum(one.double() for one in (bias, other) if one is not None)
            assert torch.equal(out, exact.bfloat16())
    expected = residual.double() + x.double() @ weight.double().T
    cublas_product(x, weight, None, residual, residual)
    assert torch.equal(residual, expected.bfloat16()), "in place"
    logits = torch.empty(5, 3)
    cublas_product(x, weight, None, None, logits)
    assert torch.equal(logits, (x.double() @ weight.double().T).float())

"""Host code refuses tensors that do not fit, and says which, what it is, and what it must be; with tokens and without.

Tensors are outlines: nothing is compiled or launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from optimized.compile.arch import SM_90A
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly, Outline
from optimized.kernels.add_rms_norm import add_rms_norm
from optimized.kernels.embedding import embedding
from optimized.kernels.gated_activation import gated_activation
from optimized.kernels.kv_block_copy import kv_block_copy
from optimized.kernels.kv_write import kv_write
from optimized.kernels.moe_combine import moe_combine
from optimized.kernels.moe_dispatch import moe_dispatch
from optimized.kernels.moe_dispatch_launch import dispatch_rows
from optimized.kernels.qk_norm import qk_norm
from optimized.kernels.qk_norm_rope_kv_write import qk_norm_rope_kv_write
from optimized.kernels.rms_norm import rms_norm
from optimized.kernels.rope import rope
from optimized.kernels.router_top_k import router_top_k

T, H, D, BF16 = 3, 64, 64, "bfloat16"
launched: list[Kernel] = []
device = CompileOnly(SM_90A, lambda kernel, _: launched.append(kernel))


def of(*shape: int, dtype: str = BF16, strides: tuple[int, ...] | None = None) -> Outline:
    return Outline(shape, dtype, device, strides)


def calls(tokens: int) -> dict[Callable[..., Any], dict[str, Any]]:
    """Arguments by name that each operation takes."""
    q, k, v, tables = of(tokens, 4, D), of(tokens, 2, D), of(tokens, 2, D), of(9, D // 2, dtype="float32")
    caches = {"k_cache": of(5, 2, 16, D), "v_cache": of(5, 2, 16, D)}
    weights = {"q_weight": of(D), "k_weight": of(D)}
    where = {"positions": of(tokens, dtype="int32"), "cos": tables, "sin": tables}
    slots = {"slot_mapping": of(tokens, dtype="int64")}
    ids = of(tokens, 2, dtype="int32")
    rows = dispatch_rows(tokens, 2, 8, tile=16)
    outs = of(9, dtype="int32"), of(rows, dtype="int32"), of(tokens, 2, dtype="int32"), of(rows, H)
    pair = of(tokens, H), of(tokens, H)
    return {
        rms_norm: {"x": of(tokens, H), "weight": of(H), "eps": 1e-6, "out": of(tokens, H)},
        add_rms_norm: {"x": of(tokens, H), "residual": of(tokens, H), "weight": of(H), "eps": 1e-6, "out": pair},
        embedding: {"token_ids": of(tokens, dtype="int32"), "table": of(9, H), "out": of(tokens, H)},
        gated_activation: {"gate_up": of(tokens, 2 * H), "kind": "silu", "out": of(tokens, H)},
        kv_block_copy: caches | {"pairs": of(tokens, 2, dtype="int32")},
        kv_write: {"k": k, "v": v} | caches | slots,
        moe_combine: {"rows": of(9, H), "row_of": ids, "weights": of(tokens, 2, dtype="float32"), "out": of(tokens, H)},
        moe_dispatch: {"x": of(tokens, H), "expert_ids": ids, "num_experts": 8, "tile": 16, "out": outs},
        qk_norm: {"q": q, "k": k, "eps": 1e-6} | weights,
        qk_norm_rope_kv_write: {"q": q, "k": k, "v": v, "eps": 1e-6} | weights | where | caches | slots,
        rope: {"x": q} | where,
        router_top_k: {
            "logits": of(tokens, 8),
            "k": 2,
            "normalize": True,
            "out": (of(tokens, 2, dtype="int32"), of(tokens, 2, dtype="float32")),
        },
    }


OPERATIONS = list(calls(T))
TENSORS = [
    (one, name) for one, given in calls(T).items() for name, value in given.items() if isinstance(value, Outline)
]
BOTH = pytest.mark.parametrize("tokens", [0, T])


@BOTH
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_fits_is_taken(operation: Callable[..., Any], tokens: int) -> None:
    launched.clear()
    operation(**calls(tokens)[operation])
    assert bool(launched) == (tokens > 0 or operation is moe_dispatch)


@BOTH
@pytest.mark.parametrize(("operation", "name"), TENSORS)
@pytest.mark.parametrize("dtype", ["int8", "float64", "float8_e4m3fn", "bool"])
def test_a_dtype_that_does_not_fit(operation: Callable[..., Any], name: str, dtype: str, tokens: int) -> None:
    given = calls(tokens)[operation]
    given[name] = of(*given[name].shape, dtype=dtype)
    with pytest.raises(TypeError, match=rf"{operation.__name__}: \w+ is \w+ \[[\d, ]+\]; it must be ") as caught:
        operation(**given)
    assert dtype in str(caught.value)


def other_shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    *first, last = shape
    return {
        "an axis more": (*shape, 1),
        "an axis less": tuple(first),
        "one element more": (*first, last + 1),
        "no element": (*first, 0),
    }


# Without tokens, a tensor of one number a token has no element; and a router may have an expert more.
OTHER_SHAPES = [
    pytest.param(one, name, shape, tokens, id=f"{one.__name__}-{name}-{change}-{tokens}")
    for tokens in (0, T)
    for one, name in TENSORS
    for change, shape in other_shapes(calls(tokens)[one][name].shape).items()
    if shape != calls(tokens)[one][name].shape and (one, name, change) != (router_top_k, "logits", "one element more")
]


@pytest.mark.parametrize(("operation", "name", "shape", "tokens"), OTHER_SHAPES)
def test_a_shape_that_does_not_fit(
    operation: Callable[..., Any], name: str, shape: tuple[int, ...], tokens: int
) -> None:
    given = calls(tokens)[operation]
    given[name] = of(*shape, dtype=given[name].dtype)
    with pytest.raises(ValueError, match=rf"{operation.__name__}: "):
        operation(**given)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_integers_are_no_floating_point_numbers(operation: Callable[..., Any]) -> None:
    given = calls(T)[operation]
    name = "k_cache" if operation is kv_block_copy else "table" if operation is embedding else next(iter(given))
    for dtype in ("int32", "int64"):
        given[name] = of(*given[name].shape, dtype=dtype)
        with pytest.raises(TypeError, match=f"{name} is {dtype} .*; it must be "):
            operation(**given)


@pytest.mark.parametrize(("operation", "names"), [(rms_norm, ["out"]), (rope, ["x"]), (qk_norm, ["q", "k"])])
@pytest.mark.parametrize("stride", [0, 1, "one less"])
def test_rows_that_are_written_do_not_overlap(operation: Any, names: list[str], stride: Any) -> None:
    for name in names:
        given = calls(T)[operation]
        shape, strides = given[name].shape, given[name].stride()
        first = strides[0] - 1 if stride == "one less" else stride
        given[name] = of(*shape, strides=(first, *strides[1:]))
        with pytest.raises(
            ValueError, match=rf"{operation.__name__}: rows of {name} have \d+ elements and begin {first} "
        ):
            operation(**given)
        given[name] = of(*shape, strides=(strides[0] + 8, *strides[1:]))
        operation(**given)


@pytest.mark.parametrize("operation", [kv_write, kv_block_copy, qk_norm_rope_kv_write])
def test_caches_that_overlap_or_are_one(operation: Callable[..., Any]) -> None:
    given = calls(T)[operation]
    with pytest.raises(ValueError, match="k_cache and v_cache are the same memory"):
        operation(**given | {"v_cache": given["k_cache"]})
    overlapping = of(5, 2, 16, D, strides=(0, 16 * D, D, 1))
    for name in ("k_cache", "v_cache"):
        with pytest.raises(ValueError, match=f"rows of {name} have 2048 elements and begin 0 apart"):
            operation(**given | {name: overlapping})


def test_the_row_of_an_input_may_be_read_again_and_again() -> None:
    rms_norm(of(T, H, strides=(0, 1)), of(H), 1e-6)


def test_sums_may_overwrite_what_was_added_but_not_each_other() -> None:
    x, residual, other = of(T, H), of(T, H), of(T, H)
    for out in ((x, residual), (residual, x), (other, residual), (x, other)):
        assert add_rms_norm(x, residual, of(H), 1e-6, out=out) == out
    with pytest.raises(ValueError, match=r"out\[0\] and out\[1\] are the same memory"):
        add_rms_norm(x, residual, of(H), 1e-6, out=(other, other))


@BOTH
@pytest.mark.parametrize("operation", [rope, qk_norm, qk_norm_rope_kv_write])
def test_heads_have_two_halves(operation: Callable[..., Any], tokens: int) -> None:
    odd = {"q": of(tokens, 4, 63), "k": of(tokens, 2, 63), "v": of(tokens, 2, 63), "x": of(tokens, 4, 63)}
    odd |= {name: of(5, 2, 16, 63) for name in ("k_cache", "v_cache")}
    odd |= {name: of(63) for name in ("q_weight", "k_weight")}
    given = calls(tokens)[operation]
    given |= {name: value for name, value in odd.items() if name in given}
    with pytest.raises(ValueError, match=f"{operation.__name__}: a head has two halves; one of 63 channels has not"):
        operation(**given)


def test_an_odd_number_of_channels_is_not_gate_and_up() -> None:
    with pytest.raises(ValueError, match="gate_up has 63 channels"):
        gated_activation(of(T, 63), kind="silu")


@pytest.mark.parametrize("operation", [rms_norm, add_rms_norm, qk_norm, qk_norm_rope_kv_write])
def test_numbers_of_numpy_are_numbers(operation: Callable[..., Any]) -> None:
    launched.clear()
    operation(**calls(T)[operation] | {"eps": np.float32(1e-6), "weight_bias": np.float64(1.0)})
    assert launched[0].symbol, "which is made of its constants as JSON"


def test_whole_numbers_of_numpy_too() -> None:
    launched.clear()
    moe_dispatch(of(T, H), of(T, 2, dtype="int32"), np.int64(8), tile=np.int32(16))
    router_top_k(of(T, 8), np.int64(2), normalize=np.bool_(True))
    assert all(kernel.symbol for kernel in launched)


@pytest.mark.parametrize("tile", [0, -1])
def test_a_tile_has_rows(tile: int) -> None:
    with pytest.raises(ValueError, match=f"moe_dispatch: tile is {tile}; it must be 1 or more"):
        moe_dispatch(of(T, H), of(T, 2, dtype="int32"), 8, tile=tile)


@BOTH
@pytest.mark.parametrize("number", range(4))
def test_each_output_of_a_dispatch_has_its_size(number: int, tokens: int) -> None:
    """Kernels write all rows that they are given; what they are given must be what the routing needs."""
    given = calls(tokens)[moe_dispatch]
    for more in (1, -1, 16):
        outs = list(given["out"])
        first, *rest = outs[number].shape
        if first + more < 0:
            continue
        outs[number] = of(first + more, *rest, dtype=outs[number].dtype)
        with pytest.raises(ValueError, match=rf"moe_dispatch: out\[{number}\] is .* it must be \w+ \[{first}"):
            moe_dispatch(**given | {"out": tuple(outs)})
    both = *given["out"][:1], of(16, dtype="int32"), given["out"][2], of(16, H)
    if tokens:
        with pytest.raises(ValueError, match=r"out\[1\]"):
            moe_dispatch(**given | {"out": both})


def test_a_tile_that_does_not_fit_shared_memory() -> None:
    """It planned 263,808 bytes, and the launch failed."""
    with pytest.raises(ValueError, match=r"tile 200000, a block copies \d+ rows and takes \d+ bytes of shared memory"):
        moe_dispatch(of(600, H), of(600, 2, dtype="int32"), 128, tile=200000)

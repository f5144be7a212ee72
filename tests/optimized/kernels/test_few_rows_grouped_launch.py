"""The launch policy of grouped products for few rows, and what their host code refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimized.compile.arch import ARCHS, SM_90A, Arch
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly, Outline
from optimized.kernels.few_rows_grouped_launch import grouped_launch, grouped_tiles_of
from optimized.kernels.few_rows_grouped_list import list_bytes
from optimized.kernels.few_rows_launch import CHUNK_BYTES, WARPS, exchange_bytes
from optimized.kernels.few_rows_routed import MOST_PAIRS
from optimized.kernels.few_rows_routed_launch import routed_bytes, routed_constants
from optimized.kernels.grouped_gated_linear import grouped_gated_linear
from optimized.kernels.grouped_linear import grouped_linear
from optimized.kernels.routed_gated_linear import routed_gated_linear
from optimized.kernels.routed_linear import routed_linear
from optimized.kernels.routed_linear_alone import RoutedLinearAlone

# Pairs of tokens and experts of a decode step, and rows of a chunk that the policy takes for them, of 128 experts.
CHUNKS = {8: 8, 64: 8, 256: 8, 512: 8, 1024: 16, 2048: 32}


@given(
    arch=st.sampled_from(list(ARCHS.values())),
    num_experts=st.integers(1, 512),
    of_experts=st.lists(st.integers(0, 64), min_size=1, max_size=512),
    out_features=st.integers(1, 20_000),
    parts=st.sampled_from([1, 2]),
    gathers=st.booleans(),
)
def test_a_launch_fits_its_chip_and_lists_all_chunks(
    arch: Arch, num_experts: int, of_experts: list[int], out_features: int, parts: int, gathers: bool
) -> None:
    counts = np.resize(of_experts, num_experts)
    num_rows = max(1, int(counts.sum()))
    sizes = arch, arch.num_sms, num_rows, num_experts, out_features
    launch = grouped_launch(*sizes, parts=parts, gathers=gathers)
    most = 8 * launch.row_tiles
    assert most in (8, 16, 32, 64)
    assert sum(-(-counts // most)) <= 2 * num_experts, "the list has room"
    assert -(-num_rows // most) + num_experts <= 2 * num_experts + 1, "whoever has how many rows"
    assert launch.stages >= 3, "two are under way while one is computed with"
    stages = WARPS * launch.stages * (16 * launch.tiles + most) * CHUNK_BYTES
    taken = stages + exchange_bytes(launch.tiles, launch.row_tiles) + list_bytes(num_experts, WARPS, gathers=gathers)
    assert taken <= arch.shared_bytes_per_block
    if most == 8 and num_experts <= 128:
        assert 2 * (taken + 1024) <= arch.shared_bytes_per_sm, "the next kernel's block fits beside"


@given(out_features=st.integers(1, 20_000), num_rows=st.integers(1, 512), parts=st.sampled_from([1, 2]))
def test_what_decides_bits_does_not_depend_on_the_number_of_rows(out_features: int, num_rows: int, parts: int) -> None:
    launch = grouped_launch(SM_90A, 132, num_rows, 8, out_features, parts=parts)
    assert launch.tiles == grouped_tiles_of(132, 8, out_features, parts)


def test_few_experts_of_a_decode_step_have_two_chunks() -> None:
    assert {pairs: 8 * grouped_launch(SM_90A, 132, pairs, 128, 2048).row_tiles for pairs in CHUNKS} == CHUNKS
    random = np.random.default_rng(0)
    for tokens in (8, 32, 64):
        ids = np.argsort(random.random((tokens, 128)), axis=1)[:, :8]
        chunks = -(-np.bincount(ids.ravel()) // CHUNKS[8 * tokens])
        assert chunks.sum() <= 1.05 * np.count_nonzero(chunks)


def test_the_tiles_of_the_models_at_hand() -> None:
    """Those that leave the busiest multiprocessor the least when the 8 experts of one token are hit."""
    assert [grouped_tiles_of(132, 128, size, 2) for size in (768, 1536)] == [3, 3]  # gate and up of 30B, and 235B
    assert [grouped_tiles_of(132, 128, size) for size in (2048, 4096)] == [2, 2]  # down


launched: list[Kernel] = []
device = CompileOnly(SM_90A, lambda kernel, _: launched.append(kernel))


def of(*shape: int, dtype: str = "bfloat16") -> Outline:
    return Outline(shape, dtype, device)


SQUARE, SQUARE_X = of(8, 64, 64), of(6, 64)
GROUPED = {"x": of(6, 64), "weight": of(8, 32, 64), "expert_offsets": of(9, dtype="int32")}
GATED = GROUPED | {"src_token": of(6, dtype="int32")}
ROUTED = {"x": of(6, 64), "weight": of(8, 32, 64), "expert_ids": of(6, 2, dtype="int32"), "kind": "silu"}
ROUTED_DOWN = {
    "x": of(6, 2, 64),
    "weight": of(8, 32, 64),
    "expert_ids": of(6, 2, dtype="int32"),
    "expert_weights": of(6, 2, dtype="float32"),
}
RIGHT = {
    grouped_linear: GROUPED,
    grouped_gated_linear: GATED | {"kind": "silu"},
    routed_gated_linear: ROUTED,
    routed_linear: ROUTED_DOWN,
}
LAUNCHES = {grouped_linear: 1, grouped_gated_linear: 1, routed_gated_linear: 1, routed_linear: 2}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (grouped_linear, {"weight": of(8, 32, 72)}, r"weight is bfloat16 \[8, 32, 72\]; it must be .* \[8, 32, 64\]"),
    (grouped_linear, {"weight": of(32, 64)}, r"weight is .*; it must be .* \[E, N, K\]"),
    (grouped_linear, {"x": of(6, 64, dtype="float32")}, r"x is float32 .*; it must be bfloat16 or float16"),
    (grouped_linear, {"x": of(6, 64, dtype="float16")}, r"weight is bfloat16 .*; it must be float16"),
    (
        grouped_linear,
        {"expert_offsets": of(8, dtype="int32")},
        r"expert_offsets is int32 \[8\]; it must be int32 \[9\]",
    ),
    (grouped_linear, {"expert_offsets": of(9, dtype="int64")}, "expert_offsets is int64"),
    (grouped_linear, {"out": of(6, 31)}, r"out is bfloat16 \[6, 31\]; it must be bfloat16 \[6, 32\]"),
    (grouped_linear, {"x": of(513, 64)}, "64 rows an expert at most, 512 here; these are 513"),
    (
        grouped_linear,
        {"weight": of(513, 32, 64), "expert_offsets": of(514, dtype="int32")},
        "1 to 512 experts; these are 513",
    ),
    (grouped_gated_linear, {"src_token": of(6, dtype="int64")}, "src_token is int64"),
    (
        grouped_gated_linear,
        {"weight": of(8, 33, 64)},
        "weight has 33 rows an expert; gate and up must have as many as each other",
    ),
    (grouped_gated_linear, {"kind": "relu"}, "unknown activation 'relu'; known are silu, gelu"),
    (
        routed_gated_linear,
        {"expert_ids": of(5, 2, dtype="int32")},
        r"expert_ids is int32 \[5, 2\]; it must be .* \[6, 2\]",
    ),
    (
        routed_gated_linear,
        {"weight": of(8, 33, 64)},
        "weight has 33 rows an expert; gate and up must have as many as each other",
    ),
    (routed_gated_linear, {"kind": "relu"}, "unknown activation 'relu'; known are silu, gelu"),
    (routed_gated_linear, {"out": of(6, 2, 32)}, r"out is .*\[6, 2, 32\]; it must be bfloat16 \[6, 2, 16\]"),
    (
        routed_gated_linear,
        {"x": of(65, 64), "expert_ids": of(65, 8, dtype="int32")},
        "65 tokens of 8 experts are 520 pairs; up to 512 are routed here",
    ),
    (routed_gated_linear, {"weight": of(513, 32, 64)}, "1 to 512 experts; these are 513"),
    (routed_linear, {"x": of(6, 3, 64)}, r"expert_ids is int32 \[6, 2\]; it must be int32 \[6, 3\]"),
    (routed_linear, {"expert_weights": of(6, 2)}, "expert_weights is bfloat16 .*; it must be float32"),
    (routed_linear, {"residual": of(6, 64)}, r"residual is bfloat16 \[6, 64\]; it must be bfloat16 \[6, 32\]"),
    (grouped_gated_linear, {"out": of(6, 32)}, r"out is bfloat16 \[6, 32\]; it must be bfloat16 \[6, 16\]"),
    (
        routed_gated_linear,
        {"out": Outline((6, 2, 16), "bfloat16", device, (48, 8, 1))},
        r"strides \[48, 8, 1\], of which that of axis 1 must be 16 or more",
    ),
    (
        routed_gated_linear,
        {"out": Outline((6, 2, 16), "bfloat16", device, (32, 24, 1))},
        "rows of out have 32 elements and begin 32 apart",
    ),
    (routed_gated_linear, {"experts_of_all": 7}, "experts_of_all is 7; the router chooses of these 8 at least"),
    (routed_gated_linear, {"weight": of(0, 32, 64)}, "1 to 512 experts; these are 0"),
    (routed_linear, {"weight": of(0, 32, 64)}, "1 to 512 experts; these are 0"),
    (
        grouped_linear,
        {"weight": of(0, 32, 64), "expert_offsets": of(1, dtype="int32")},
        "1 to 512 experts; these are 0",
    ),
    (grouped_linear, {"weight": SQUARE, "out": SQUARE_X, "x": SQUARE_X}, "out and x are the same memory"),
]


@pytest.mark.parametrize(("operation", "changed", "message"), REFUSED)
def test_what_does_not_fit_is_refused(operation: Any, changed: dict[str, Any], message: str) -> None:
    launched.clear()
    operation(**RIGHT[operation])
    assert len(launched) == LAUNCHES[operation], "the rest is right"
    with pytest.raises((ValueError, TypeError), match=message):
        operation(**{**RIGHT[operation], **changed})
    assert len(launched) == LAUNCHES[operation]


@given(per_token=st.integers(1, 32), experts=st.integers(1, 40))
def test_a_token_alone_has_room_for_each_of_its_experts(per_token: int, experts: int) -> None:
    """Be it the same one each time: each is a chunk."""
    x, weight, ids = of(1, 64), of(experts, 96, 64), of(1, per_token, dtype="int32")
    constants = routed_constants("routed_gated_linear", device, x, weight, ids, None, parts=2, pdl=True)
    row_tiles = constants[6]
    assert row_tiles == 1 and experts + MOST_PAIRS // (8 * row_tiles) >= per_token


def test_nothing_is_launched_without_rows() -> None:
    launched.clear()
    assert grouped_linear(**{**GROUPED, "x": of(0, 64)}).shape == (0, 32)
    assert grouped_gated_linear(**{**GATED, "src_token": of(0, dtype="int32")}, kind="silu").shape == (0, 16)
    assert launched == []
    ids = of(0, 2, dtype="int32")
    assert routed_gated_linear(**{**ROUTED, "x": of(0, 64), "expert_ids": ids}).shape == (0, 2, 16)
    none = {"x": of(0, 2, 64), "expert_ids": ids, "expert_weights": of(0, 2, dtype="float32")}
    assert routed_linear(**{**ROUTED_DOWN, **none}).shape == (0, 32)
    assert launched == []


def test_one_token_is_one_launch_of_the_same_tiles() -> None:
    launched.clear()
    one = {"x": of(1, 2, 64), "expert_ids": of(1, 2, dtype="int32"), "expert_weights": of(1, 2, dtype="float32")}
    for rows in (one, {}):
        routed_linear(**{**ROUTED_DOWN, "weight": of(8, 4096, 64), **rows})
    alone, several, _ = launched
    assert isinstance(alone, RoutedLinearAlone) and alone.tiles == several.tiles == 2  # type: ignore[attr-defined]


@given(tokens=st.integers(1, 64), per_token=st.integers(1, 8), experts=st.integers(1, 512), others=st.integers(0, 512))
def test_a_routed_launch_fits_its_chip(tokens: int, per_token: int, experts: int, others: int) -> None:
    x, weight, ids = of(tokens, 64), of(experts, 96, 64), of(tokens, per_token, dtype="int32")
    _, _, _, _, _, _, row_tiles, tiles, stages, *_ = routed_constants(
        "routed_gated_linear", device, x, weight, ids, experts + others, parts=2, pdl=True
    )
    most = 8 * row_tiles
    room = experts + MOST_PAIRS // most
    assert room >= experts + tokens * per_token // most, "whoever has how many pairs"
    taken = WARPS * stages * (16 * tiles + most) * CHUNK_BYTES + exchange_bytes(tiles, row_tiles)
    assert stages >= 3 and taken + routed_bytes(experts, most) <= SM_90A.shared_bytes_per_block

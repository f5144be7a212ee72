"""The launch policy of products for few rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimized.compile.arch import ARCHS, SM_90A, SM_100A, Arch
from optimized.kernels.few_rows_launch import CHUNK_BYTES, WARPS, exchange_bytes, few_rows_launch, tiles_of

SHAPES = {"qkv": 6144, "o": 4096, "down": 4096, "head": 151936, "06 o": 1024}


def shared_bytes(tiles: int, row_tiles: int, stages: int, has_norm: bool) -> int:
    rows = 16 * tiles + 8 * row_tiles + has_norm
    squares = 4 * WARPS * 8 * row_tiles if has_norm else 0
    return WARPS * stages * rows * CHUNK_BYTES + exchange_bytes(tiles, row_tiles) + squares


@given(
    arch=st.sampled_from(list(ARCHS.values())),
    num_rows=st.integers(1, 300),
    out_features=st.integers(1, 200_000),
    parts=st.sampled_from([1, 2]),
    has_norm=st.booleans(),
)
def test_a_launch_fits_its_chip(arch: Arch, num_rows: int, out_features: int, parts: int, has_norm: bool) -> None:
    launch = few_rows_launch(arch, arch.num_sms, num_rows, out_features, parts=parts, has_norm=has_norm)
    assert 8 * launch.row_tiles >= min(num_rows, 64)
    assert launch.row_tiles == 1 or 4 * launch.row_tiles < num_rows, "no more tiles than rows need"
    assert launch.stages >= 3, "two are under way while one is computed with"
    taken = shared_bytes(launch.tiles, launch.row_tiles, launch.stages, has_norm)
    assert taken <= arch.shared_bytes_per_block
    if num_rows <= 16:
        assert 2 * (taken + 1024) <= arch.shared_bytes_per_sm, "the next kernel's block fits beside"


@given(out_features=st.integers(1, 200_000), parts=st.sampled_from([1, 2]), num_rows=st.integers(1, 64))
def test_what_decides_bits_does_not_depend_on_the_number_of_rows(out_features: int, parts: int, num_rows: int) -> None:
    alone, together = (few_rows_launch(SM_90A, 132, count, out_features, parts=parts) for count in (1, num_rows))
    assert alone.tiles == together.tiles == tiles_of(132, out_features, parts)


def test_the_tiles_that_were_measured_to_be_best() -> None:
    """docs/launch-policy.md."""
    assert {name: tiles_of(132, size) for name, size in SHAPES.items()} == {
        "qkv": 3,
        "o": 2,
        "down": 2,
        "head": 3,
        "06 o": 1,
    }
    assert tiles_of(132, 12288, 2) == 3
    assert tiles_of(SM_100A.num_sms, 4096) == 2


@pytest.mark.parametrize("sms", [1, 132, 148])
@given(out_features=st.integers(1, 200_000))
def test_no_other_tiles_leave_the_busiest_multiprocessor_less(sms: int, out_features: int) -> None:
    def busiest(tiles: int) -> int:
        units = -(-out_features // (16 * tiles))
        return -(-units // sms) * tiles

    assert busiest(tiles_of(sms, out_features)) == min(busiest(tiles) for tiles in (1, 2, 3))

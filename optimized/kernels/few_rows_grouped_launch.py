"""How a grouped product for few rows is launched: pure functions of shapes and chip, apart from `few_rows_grouped`.

As for the dense one, what decides a result's bits (`grouped_tiles_of`) depends on the weight and the chip alone.
"""

from __future__ import annotations

from math import isqrt

from optimized.compile.arch import Arch
from optimized.kernels.few_rows_grouped_list import list_bytes
from optimized.kernels.few_rows_launch import (
    CHUNK_BYTES,
    MOST_ROWS,
    MOST_STAGES,
    WARPS,
    FewRowsLaunch,
    exchange_bytes,
    tiles_of,
)

MAX_EXPERTS = 512
_TYPICAL_HITS = 8  # experts that one token goes to, in the models at hand


def grouped_launch(
    arch: Arch,
    num_sms: int,
    num_rows: int,
    num_experts: int,
    out_features: int,
    *,
    parts: int = 1,
    gathers: bool = False,
) -> FewRowsLaunch:
    """num_rows: of all experts, padding included. out_features: rows of each part of an expert's weight.

    However many rows each expert has, the list has room: C rows a chunk make E + R / C chunks at most, and no more than
    2 E if C is not below the mean.
    Errors: ValueError for more experts than can be listed, and for more rows than MOST_ROWS an expert.
    """
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"a grouped product takes 1 to {MAX_EXPERTS} experts; these are {num_experts}")
    if num_rows > MOST_ROWS * num_experts:
        raise ValueError(
            f"a grouped product for few rows takes {MOST_ROWS} rows an expert at most, {MOST_ROWS * num_experts} "
            f"here; these are {num_rows}: see `grouped_linear_many_rows`"
        )
    row_tiles = chunk_tiles(num_rows, num_experts)
    tiles = grouped_tiles_of(num_sms, num_experts, out_features, parts)
    list_size = list_bytes(num_experts, WARPS, gathers=gathers)
    return FewRowsLaunch(row_tiles, tiles, stages_of(arch, tiles, row_tiles, list_size), num_sms)


def chunk_tiles(num_rows: int, num_experts: int) -> int:
    """Tiles of 8 rows of a chunk: so many that, were each row's expert drawn at random, few experts had two chunks."""
    mean = -(-num_rows // num_experts)
    usual = min(num_rows, mean + isqrt(4 * mean), MOST_ROWS)  # two standard deviations above the mean
    return 1 << (-(-usual // 8) - 1).bit_length()


def stages_of(arch: Arch, tiles: int, row_tiles: int, list_size: int) -> int:
    """As many as leave room for two blocks on a multiprocessor, this kernel's and the next one's; as many as there is
    room for if those are fewer than 3."""
    beside = exchange_bytes(tiles, row_tiles) + list_size + 256  # for alignment
    stage_bytes = WARPS * (16 * tiles + 8 * row_tiles) * CHUNK_BYTES
    stages = (arch.shared_bytes_per_sm // 2 - 1024 - beside) // stage_bytes
    if stages < 3:
        stages = (arch.shared_bytes_per_block - beside) // stage_bytes
    return min(MOST_STAGES, stages)


def grouped_tiles_of(num_sms: int, num_experts: int, out_features: int, parts: int = 1) -> int:
    """Tiles of a unit: those that are best when one token's experts are hit."""
    return tiles_of(num_sms, out_features, parts, weights=min(num_experts, _TYPICAL_HITS))

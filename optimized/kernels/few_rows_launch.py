"""How a matrix product for few rows is launched: pure functions of shapes and chip, apart from `few_rows`.

What decides a result's bits (CHUNK, WARPS, `tiles_of`) depends on the weight and the chip alone. The rest is chosen for
speed, and may depend on the number of rows. The measurements are in docs/launch-policy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from optimized.compile.arch import Arch
from optimized.device import Tensor, alignment_of, dtype_of
from optimized.kernels.rows import itemsize

WARPS = 4  # of a block; each has a sum over its part of k, and they are added in order
CHUNK_BYTES = 128  # of a row, that a warp takes at a time
CHUNK = CHUNK_BYTES // 2  # elements
MOST_ROWS = 64  # of x, in one unit
FEW_ROWS = 32  # up to so many, these kernels are the fastest
PASS_TILES = 1  # tiles of 8 rows of x whose sums are exchanged at once
_MOST_TILES = 3
MOST_STAGES = 8
_MOST_ROWS_OF_TWO = 16  # up to so many rows, two blocks are to fit a multiprocessor: this kernel's and the next one's
_PAD = 4  # floats between columns of exchanged sums, so that lanes of a product write to different banks


@dataclass(frozen=True)
class FewRowsLaunch:
    """Constants of a `FewRows`."""

    row_tiles: int
    tiles: int
    stages: int
    blocks: int


def few_rows_launch(
    arch: Arch, num_sms: int, num_rows: int, out_features: int, *, parts: int = 1, has_norm: bool = False
) -> FewRowsLaunch:
    """num_rows: of x, 1 or more. out_features: rows of each part of the weight."""
    row_tiles = 1 << (-(-min(num_rows, MOST_ROWS) // 8) - 1).bit_length()
    tiles = tiles_of(num_sms, out_features, parts)
    fits = arch.shared_bytes_per_block
    if num_rows <= _MOST_ROWS_OF_TWO:
        fits = arch.shared_bytes_per_sm // 2 - 1024
    fits -= exchange_bytes(tiles, row_tiles) + has_norm * 4 * WARPS * 8 * row_tiles
    stage_bytes = WARPS * (16 * tiles + 8 * row_tiles + has_norm) * CHUNK_BYTES
    return FewRowsLaunch(row_tiles, tiles, min(MOST_STAGES, fits // stage_bytes), num_sms)


def tiles_of(num_sms: int, out_features: int, parts: int = 1, weights: int = 1) -> int:
    """Tiles of a unit: those for which the busiest multiprocessor has the fewest rows of so many weights; the most of
    these, since x comes to shared memory once a unit."""

    def busiest(tiles: int) -> int:
        units = -(-parts * out_features // (16 * tiles)) * weights
        return -(-units // num_sms) * 16 * tiles

    return min(range(1, _MOST_TILES + 1), key=lambda tiles: (busiest(tiles), -tiles))


def column_floats(tiles: int) -> int:
    """From one row of x to the next in exchanged sums."""
    return 16 * tiles + _PAD


def exchange_bytes(tiles: int, row_tiles: int) -> int:
    """Of shared memory, for the exchange of sums: see `shared_sums`."""
    return 4 * 2 * WARPS * 8 * min(row_tiles, PASS_TILES) * column_floats(tiles)


def strides_of(tensor: Tensor) -> tuple[int, ...]:
    """Elements, of all axes but the last; those of an axis of one element are as if it were contiguous, since nothing
    is there to be told apart by what they are."""
    found, inner = [], tensor.shape[-1]
    for length, stride in zip(tensor.shape[-2::-1], tensor.stride()[-2::-1], strict=True):
        found.append(stride if length > 1 else inner)
        inner = length * found[-1]
    return tuple(reversed(found))


def access_of(tensor: Tensor, *beside: Tensor) -> int:
    """Bytes of the widest copy, 16 at most, that suits all rows (along the last axis) of a tensor, and tensors of one
    such row beside it."""
    size = itemsize(dtype_of(tensor))
    strides = (stride * size for stride in strides_of(tensor))
    return gcd(16, alignment_of(tensor, *beside), tensor.shape[-1] * size, *strides)

"""How a kernel is launched, as pure functions of shapes and chip: what host code asks, and tests and people may ask.

The measurement behind each threshold is in docs/launch-policy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from optimized.compile.arch import Arch

WARP = 32
MAX_THREADS = 1024  # of a block
BLOCK_THREADS = 128
WARPS_PER_SM = 256  # four times what can be resident: with more, each may as well do more
MAX_VECTORS = 4  # accesses of a thread, unless MAX_THREADS leave it more


@dataclass(frozen=True)
class RowLaunch:
    """Threads over rows that are computed apart from each other (a token, a head)."""

    vector: int  # elements of one access
    vectors: int  # accesses of each thread, to cover a row
    threads_per_row: int  # a power of two up to 32, then whole warps
    rows_per_block: int

    @property
    def threads(self) -> int:
        return self.threads_per_row * self.rows_per_block


def vector_elements(arch: Arch, itemsize: int, *, length: int, strides: tuple[int, ...], alignment: int) -> int:
    """Elements of the widest access that no row makes impossible.

    length, strides: elements of a row, and from row to row in every tensor. alignment: bytes that divide every address
    of a first row.
    """
    widest = max(1, gcd(arch.vector_bytes, alignment) // itemsize)
    for count in (length, *strides):
        widest = gcd(widest, count)
    return widest


def row_launch(num_sms: int, num_rows: int, *, length: int, vector: int) -> RowLaunch:
    """As many threads a row as it has accesses, so that nothing waits for a second one; but where there are more warps
    than a chip can use, down to BLOCK_THREADS a row with up to MAX_VECTORS accesses each, which keeps as many loads in
    flight with less to add up across warps. Blocks of BLOCK_THREADS, or of one row that is longer."""
    row_vectors = -(-length // vector)
    vectors = 1
    if num_rows * _threads(row_vectors, 1) > num_sms * WARPS_PER_SM * WARP:
        while vectors < MAX_VECTORS and _threads(row_vectors, 2 * vectors) >= BLOCK_THREADS:
            vectors *= 2
    threads = min(MAX_THREADS, _threads(row_vectors, vectors))
    return RowLaunch(vector, -(-row_vectors // threads), threads, max(1, BLOCK_THREADS // threads))


def _threads(row_vectors: int, vectors: int) -> int:
    """Threads of a row, a power of two, that leave each about so many accesses."""
    return 1 << (-(-row_vectors // vectors) - 1).bit_length()

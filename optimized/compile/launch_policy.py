"""How a kernel is launched, as pure functions of shapes and chip: what host code asks, and tests and people may ask.

The measurement behind each threshold is in docs/launch-policy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from optimized.compile.arch import Arch

WARP = 32
MAX_THREADS = 1024  # of a block


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
    widest = gcd(arch.vector_bytes, alignment) // itemsize
    for count in (length, *strides):
        widest = gcd(widest, count)
    return max(1, widest)


def row_launch(num_sms: int, num_rows: int, *, length: int, vector: int, max_vectors: int = 4) -> RowLaunch:
    """A row goes to as many threads as leave each at most `max_vectors` accesses; a short row to part of a warp.

    Few rows (decode): each has a block of its own, and as many threads as it has accesses, because nothing but latency
    counts. Many: blocks of at least 8 warps, so that a multiprocessor has loads in flight from several.
    """
    row_vectors = -(-length // vector)
    is_decode = num_rows * -(-row_vectors // WARP) <= num_sms
    threads = _power_of_two(row_vectors) if is_decode else _power_of_two(-(-row_vectors // max_vectors))
    if not is_decode and row_vectors >= WARP:
        threads = max(threads, WARP)
    threads = min(threads, MAX_THREADS)
    rows_per_block = max(1, (WARP if is_decode else 8 * WARP) // threads)
    return RowLaunch(vector, -(-row_vectors // threads), threads, rows_per_block)


def _power_of_two(count: int) -> int:
    """The next one."""
    return 1 << max(count - 1, 0).bit_length()

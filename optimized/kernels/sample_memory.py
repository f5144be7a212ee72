"""The shared memory of a block that samples, part by part."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import const_expr, cute
from cutlass.memory import SmemAllocator

from optimized.kernels.forbidden import BITS
from optimized.kernels.largest import BINS, MOST_GATHERED
from optimized.kernels.limit_set import BINS as DIGITS
from optimized.kernels.limit_set import MOST_SORTED, SLOTS
from optimized.kernels.row_cluster import THREADS, WARPS

u32 = cutlass.Uint32
u64 = cutlass.Uint64
f32 = cutlass.Float32


class SampleMemory(NamedTuple):
    """What comes after `sCounts` lies in memory that is for one thing after another: the bits of forbidden tokens until
    the row is read, bins and lists while a few tokens are looked for, cells while a mass is."""

    sRow: cute.Tensor  # f32 [slice]
    sSlots: cute.Tensor  # u32 [cluster * WARPS, SLOTS]
    sTotals: cute.Tensor  # u32 [BINS]
    sCounts: cute.Tensor  # u32 [DIGITS]
    sBins: cute.Tensor  # u32 [BINS]; the other parts leave it alone, but for the cells and the maxima
    sForbidden: cute.Tensor | None  # u32 [slice / BITS]
    sFound: cute.Tensor  # u64 [MOST_GATHERED]
    sTogether: cute.Tensor  # u64 [MOST_GATHERED]
    sOrdered: cute.Tensor  # u64 [MOST_SORTED]
    sCells: cute.Tensor  # f32 [THREADS, DIGITS], if limits are "any"
    sMaxima: cute.Tensor  # f32 [WARPS]


def sample_memory(row: Any) -> SampleMemory:
    """row: the kernel, which has limits: see `sample_tokens`."""
    memory = SmemAllocator()
    sRow = memory.allocate_tensor(f32, cute.make_layout(row.slice), byte_alignment=32)
    sSlots = memory.allocate_tensor(u32, cute.make_layout((row.cluster * WARPS, SLOTS)))
    sTotals = memory.allocate_tensor(u32, cute.make_layout(BINS), byte_alignment=32)
    sCounts = memory.allocate_tensor(u32, cute.make_layout(DIGITS))
    sShared = memory.allocate_tensor(u32, cute.make_layout(_shared_words(row)), byte_alignment=16)
    cells = THREADS * DIGITS if row.limits == "any" else WARPS
    sCells = _part(sShared, f32, 0, cells)
    if const_expr(row.limits == "any"):
        sCells = cute.make_tensor(sCells.iterator, cute.make_layout((THREADS, DIGITS)))
    return SampleMemory(
        sRow,
        sSlots,
        sTotals,
        sCounts,
        _part(sShared, u32, 0, BINS),
        _part(sShared, u32, BINS, row.slice // BITS) if row.forbids else None,
        _part(sShared, u64, BINS, MOST_GATHERED),
        _part(sShared, u64, BINS + 2 * MOST_GATHERED, MOST_GATHERED),
        _part(sShared, u64, BINS + 4 * MOST_GATHERED, MOST_SORTED),
        sCells,
        _part(sShared, f32, 0, WARPS),
    )


def _shared_words(row: Any) -> int:
    lists = BINS + 4 * MOST_GATHERED + 2 * MOST_SORTED
    forbidden = BINS + row.slice // BITS
    return max(lists, forbidden, THREADS * DIGITS if row.limits == "any" else 0)


def _part(sShared: cute.Tensor, dtype: Any, first_word: int, length: int) -> cute.Tensor:
    """Some of a tensor of words, as a tensor of its own."""
    words = cute.make_tensor(sShared.iterator + first_word, cute.make_layout(length * dtype.width // 32))
    return cute.recast_tensor(words, dtype)  # which, unlike a pointer, remembers that integers have no sign

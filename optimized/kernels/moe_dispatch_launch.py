"""How a dispatch is launched: pure functions of shapes and chip, apart from the kernels of `moe_dispatch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optimized.compile.arch import Arch
from optimized.compile.launch_policy import WARP
from optimized.kernels.moe_routing import MAX_EXPERTS, THREADS, WARPS, routing_bytes

MOST_PAIRS_ALONE = 2 * THREADS
MOST_PAIRS_TOGETHER = 4096
_MOST_ACCESSES = 4  # of a thread for a row, where enough threads are there


def dispatch_rows(num_tokens: int, experts_per_token: int, num_experts: int, *, tile: int) -> int:
    """Rows that hold any routing, padding included, as the reference says: they do not depend on the routing."""
    routed = num_tokens * experts_per_token
    return (routed + min(num_experts, routed) * (tile - 1)) // tile * tile


@dataclass(frozen=True)
class DispatchLaunch:
    """How a dispatch is spread over a chip.

    "alone": each block routes every pair for itself and copies its share of the rows. Nobody waits for anybody, and
    the routing takes as long as it would in one block.
    "together": one cooperative launch: each block routes a chunk, with a grid barrier in the middle; after another
    barrier all blocks copy.
    "apart": the routing of "together", then a launch that copies, whose blocks are many and not held to one a
    multiprocessor.
    """

    variant: Literal["alone", "together", "apart"]
    blocks: int
    items: int  # pairs of a thread
    ranking_warps: int  # of a block, that have pairs
    threads_per_row: int  # where the routing launch copies
    rows_capacity: int  # a power of two that holds the rows a block copies
    shared_bytes: int  # of a block, at most


def dispatch_launch(
    arch: Arch,
    num_sms: int,
    num_tokens: int,
    experts_per_token: int,
    num_experts: int,
    *,
    tile: int,
    row_accesses: int,  # vectors of a row
) -> DispatchLaunch:
    """Errors: ValueError for more experts than a block has threads, and for more rows than its shared memory holds."""
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"moe_dispatch: 1 to {MAX_EXPERTS} experts can be dispatched to; these are {num_experts}")
    num_pairs = num_tokens * experts_per_token
    rows = dispatch_rows(num_tokens, experts_per_token, num_experts, tile=tile)
    is_alone = num_pairs <= MOST_PAIRS_ALONE
    # A block that waits for others has a multiprocessor to itself: then it fits, whatever registers it takes.
    blocks = max(1, min(rows, 2 * num_sms)) if is_alone else num_sms
    chunks = 1 if is_alone else blocks
    items = _power_of_two(-(-num_pairs // (chunks * THREADS)))
    warps = min(WARPS, _power_of_two(-(-num_pairs // (items * WARP)))) if is_alone else WARPS
    is_apart = num_pairs > MOST_PAIRS_TOGETHER
    rows_per_block = 0 if is_apart else -(-rows // blocks)
    capacity = 0 if is_apart else _power_of_two(rows_per_block)
    shared_bytes = routing_bytes(num_experts, warps, chunked=not is_alone) + 4 * capacity
    if shared_bytes > arch.shared_bytes_per_block:
        raise ValueError(
            f"moe_dispatch: with tile {tile}, a block copies {rows_per_block} rows and takes {shared_bytes} bytes of "
            f"shared memory; {arch.name} has {arch.shared_bytes_per_block}: take a smaller tile"
        )
    return DispatchLaunch(
        "alone" if is_alone else "apart" if is_apart else "together",
        blocks,
        items,
        warps,
        _threads_per_row(row_accesses, rows_per_block),
        capacity,
        shared_bytes,
    )


def _threads_per_row(row_accesses: int, rows_per_block: int) -> int:
    """A power of two: as few as leave each thread few accesses, but all of the block if it has few rows."""
    few = max(_power_of_two(-(-row_accesses // _MOST_ACCESSES)), THREADS // _power_of_two(rows_per_block), WARP)
    return min(few, _power_of_two(row_accesses), THREADS)


def _power_of_two(count: int) -> int:
    """The next one."""
    return 1 << max(count - 1, 0).bit_length()

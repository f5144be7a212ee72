"""How paged decode attention is launched: pure functions of shapes and chip.

What decides a row's bits (the lengths of splits and spans, the number of warps) depends on the shapes of heads and on
the chip alone, never on how many requests there are or how long they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from optimized.compile.arch import Arch
from optimized.compile.launch_policy import WARP

MOST_QUERIES = 8  # of a request
MOST_REQUESTS = 1024  # of a call
FEW_REQUESTS = 256
CHUNK = 16  # keys that a warp takes at once: the depth of a product of the tensor core
TILE = 16  # rows of such a product
HALF = 8  # rows of a tile that are put together at once
EXCHANGE_PADDING = 8  # float32 from one row to the next, so that rows lie in different banks


@dataclass(frozen=True)
class AttentionLaunch:
    """How the keys of a batch are spread over a chip: see `paged_attention_split`."""

    split: int  # keys that a block of threads takes at once, a part for each of its warps
    splits_per_span: int  # splits that are put together first
    warps: int  # of a block
    stages: int  # chunks of keys and values that a warp has room for
    tiles: int  # of 16 query rows that a warp holds at once
    rows: int  # that they have
    passes: int  # over the keys, until all rows were held
    capacity: int  # requests that a block can number
    blocks: int
    blocks_per_sm: int
    slots: int  # of a block, for results that are put together after the barrier
    shared_bytes: int  # of a block, at most
    spares_registers: bool  # by addresses that are computed where they are needed


def queries_capacity(max_query_len: int) -> int:
    """The next of 1, 2, 4, 8. Errors: ValueError."""
    if max_query_len < 0:
        raise ValueError(f"paged_attention: max_query_len is {max_query_len}; it must be 0 to {MOST_QUERIES}")
    if max_query_len > MOST_QUERIES:
        raise ValueError(
            f"paged_attention: a request may have {MOST_QUERIES} queries here, and max_query_len is {max_query_len}: "
            "longer chunks are for prefill attention"
        )
    return 1 << (max(max_query_len, 1) - 1).bit_length()


def attention_launch(
    arch: Arch,
    num_sms: int,
    *,
    num_requests: int,
    max_keys: int,  # that a request's blocks have room for
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_query_len: int,
    split: int = 256,
    splits_per_span: int = 16,
    warps: int = 8,
    stages: int = 2,
    blocks_per_sm: int = 1,
) -> AttentionLaunch:
    """Errors: ValueError for more queries or keys than fit, and for splits that warps cannot share."""
    warps = min(warps, 1024 // head_dim)  # shared memory has no room for eight warps' keys of 256 channels
    if split < 1 or split % (warps * CHUNK):
        raise ValueError(f"paged_attention: split is {split}; it must be a multiple of {warps} warps' {CHUNK} keys")
    rows = queries_capacity(max_query_len) * (num_heads // num_kv_heads)
    tiles = min(-(-rows // TILE), 2 if head_dim <= 128 else 1)
    passes = -(-rows // (tiles * TILE))
    rows = min(rows, tiles * TILE)
    capacity = FEW_REQUESTS if num_requests <= FEW_REQUESTS else MOST_REQUESTS
    shared = shared_bytes(warps, stages, tiles, rows, head_dim, capacity)
    blocks_per_sm = min(blocks_per_sm, arch.shared_bytes_per_sm // (shared + 1024))
    spares_registers = head_dim > 128 and arch.compute_capability[0] >= 10  # else some spill there, and none on Hopper

    splits = -(-max_keys // split)  # of a request's keys, at most
    room = merge_room(ring_bytes(warps, stages, head_dim) // 4)
    most_splits = min(room.kept, min(room.spans, room.pieces) * splits_per_span)
    if splits > most_splits:
        raise ValueError(
            f"paged_attention: a request may have {most_splits * split} keys here, and its blocks have room for "
            f"{max_keys}"
        )
    most = num_requests * num_kv_heads * passes * splits
    blocks = min(num_sms * blocks_per_sm, 1 << max(most - 1, 0).bit_length())
    k = splits_per_span
    slots = k + min(-(-most // blocks), 2 * (k - 1) + -(-splits // k))
    if splits <= 1 or blocks == 1:
        slots = 0  # no request is cut
    return AttentionLaunch(
        split,
        k,
        warps,
        stages,
        tiles,
        rows,
        passes,
        capacity,
        blocks,
        blocks_per_sm,
        slots,
        shared,
        spares_registers,
    )


def shared_bytes(warps: int, stages: int, tiles: int, rows: int, head_dim: int, capacity: int) -> int:
    """Of a block: the ring, what its warps exchange, the two levels of sums, the numbering of splits."""
    ring = ring_bytes(warps, stages, head_dim)
    queries = tiles * TILE * head_dim * 2
    exchange = 4 * warps * min(rows, HALF) * (head_dim + EXCHANGE_PADDING + 2)
    sums = 2 * 4 * 6 * warps * WARP * -(-rows // HALF) * pieces_of_thread(rows, head_dim, warps)
    return ring + queries + exchange + sums + 4 * (capacity + 2 + 2 * warps) + 512  # 512: for alignment


def ring_bytes(warps: int, stages: int, head_dim: int) -> int:
    """Where the warps of a block fetch keys and values to, and where it adds up strands later."""
    return warps * stages * 2 * CHUNK * head_dim * 2


class MergeRoom(NamedTuple):
    """What there is room for when a strand is added up."""

    kept: int  # results
    spans: int
    pieces: int  # of sums of spans: six words each


def merge_room(words: int) -> MergeRoom:
    return MergeRoom(words // 2, words // 8, words * 3 // 8 // 6)


def pieces_of_thread(rows: int, head_dim: int, warps: int) -> int:
    """Pieces of four channels, of eight rows or of all if they are fewer, for each thread."""
    return -(-min(rows, HALF) * head_dim // 4 // (warps * WARP))


def threads_of(launch: AttentionLaunch) -> int:
    return launch.warps * WARP

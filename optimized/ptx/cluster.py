"""Shared memory of the other blocks of a cluster, four bytes at a time, and the barrier of all of them.

Source: PTX ISA, "State Spaces: .shared::cluster", "mapa", "barrier.cluster".
"""

from __future__ import annotations

import cutlass
from cutlass import const_expr, cute


def store_in_block(pointer: cute.Pointer, rank: cutlass.Int32, value: cutlass.Uint32) -> None:
    """pointer: to this block's shared memory; what lies there in block `rank` is written."""
    cute.arch.inline_ptx("st.shared::cluster.u32 [{$r0}], {$r1};", read_only_args=[_there(pointer, rank), value])


def load_from_block(pointer: cute.Pointer, rank: cutlass.Int32) -> cutlass.Uint32:
    """pointer: to this block's shared memory; what lies there in block `rank` is read."""
    return cute.arch.inline_ptx(
        "ld.shared::cluster.u32 {$w0}, [{$r0}];",
        write_only_types=[cutlass.Uint32],
        read_only_args=[_there(pointer, rank)],
    )


def add_in_block(pointer: cute.Pointer, rank: cutlass.Int32, value: cutlass.Uint32) -> None:
    """pointer: to this block's shared memory; what lies there in block `rank` is added to, atomically."""
    cute.arch.inline_ptx(
        "red.relaxed.cluster.shared::cluster.add.u32 [{$r0}], {$r1};",
        read_only_args=[_there(pointer, rank), value],
    )


def cluster_barrier(blocks: cutlass.Constexpr) -> None:
    """Every thread of the cluster waits for every other, and sees what any of them wrote before."""
    if const_expr(blocks == 1):
        cute.arch.sync_threads()
    else:
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


def _there(pointer: cute.Pointer, rank: cutlass.Int32) -> cutlass.Int32:
    return cutlass.Int32(cute.arch.map_dsmem_ptr(pointer, rank).toint())

"""How many blocks of a kernel a multiprocessor holds at once, and what keeps it from more.

Source: CUDA C++ Programming Guide 13, "Occupancy": registers are handed out to warps in units of 256; each block takes
1 KiB of shared memory for the system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from optimized.compile.arch import Arch
from optimized.compile.artifact import Artifact, Resources

_WARP = 32
_REGISTER_UNIT = 256
_SYSTEM_BYTES = 1024


@dataclass(frozen=True)
class Residency:
    """Of one kernel, launched with the block that it is compiled for. Dynamic shared memory is not counted."""

    threads: int  # of a block
    blocks: int  # of a multiprocessor
    limit: str  # what there is no more of
    share: float  # of the threads that a multiprocessor has room for


def residency(threads: int, resources: Resources, arch: Arch) -> Residency:
    warps = -(-threads // _WARP)
    registers = -(-resources.registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT * warps
    room = {
        "registers": arch.registers_per_sm // registers if registers else arch.max_blocks_per_sm,
        "shared memory": arch.shared_bytes_per_sm // (resources.shared_bytes + _SYSTEM_BYTES),
        "threads": arch.max_threads_per_sm // (warps * _WARP),
        "blocks": arch.max_blocks_per_sm,
    }
    limit = min(room, key=lambda name: room[name])
    blocks = room[limit]
    return Residency(threads, blocks, limit, blocks * warps * _WARP / arch.max_threads_per_sm)


def threads_of(artifact: Artifact, kernel: str) -> int | None:
    """Threads of a block, where the PTX fixes them."""
    entry = re.search(rf"\.entry {re.escape(kernel)}\s*\(.*?\)\s*(?P<directives>[^{{]*)\{{", artifact.ptx, re.DOTALL)
    fixed = entry and re.search(r"\.reqntid ([0-9, ]+)", entry["directives"])
    if not fixed:
        return None
    count = 1
    for size in fixed[1].split(","):
        count *= int(size)
    return count

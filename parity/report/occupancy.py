"""How many blocks of a compiled kernel a multiprocessor holds at once, and what keeps it from more."""

from __future__ import annotations

import re
from dataclasses import dataclass

from optimized.compile.arch import Arch
from optimized.compile.artifact import Artifact, Resources
from optimized.compile.launch_policy import WARP
from optimized.compile.residency import blocks_by_limit


@dataclass(frozen=True)
class Residency:
    """Of one kernel, launched with the block that it is compiled for."""

    threads: int  # of a block
    blocks: int  # of a multiprocessor
    limit: str  # what there is no more of
    share: float  # of the threads that a multiprocessor has room for


def residency(threads: int, resources: Resources, arch: Arch) -> Residency:
    room = blocks_by_limit(arch, threads=threads, registers=resources.registers, shared_bytes=resources.shared_bytes)
    limit = min(room, key=lambda name: room[name])
    blocks = room[limit]
    return Residency(threads, blocks, limit, blocks * -(-threads // WARP) * WARP / arch.max_threads_per_sm)


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

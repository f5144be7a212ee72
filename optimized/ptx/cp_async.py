"""`cp.async`: a few bytes from global to shared memory that pass through no register, waited for by groups.

Groups and waits are `cute.arch.cp_async_commit_group` and `cp_async_wait_group`. Source: PTX ISA 9, "cp.async".
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute


def copy_async(
    to: cutlass.Int32,  # address in shared memory
    source: cutlass.Int64,  # address in global memory
    num_bytes: int,  # 4, 8, or 16 (which pass by the L1 cache); both addresses are multiples of it
    *,
    to_offset: int = 0,  # bytes behind `to`
    source_offset: int = 0,  # bytes behind `source`
    valid: Any = None,  # i32: so many bytes are read, and 0 is written for the rest; None: all
    predicate: Any = None,  # false for a thread that copies nothing
    fetch_ahead: bool = False,  # the L2 cache may fetch all 256 bytes around it
) -> None:
    """Start one thread's copy."""
    cache, hint = "cg" if num_bytes == 16 else "ca", ".L2::256B" if fetch_ahead else ""
    rest = "" if valid is None else ", {$r2}"
    cute.arch.inline_ptx(
        f"cp.async.{cache}.shared.global{hint} "
        f"[{{$r0}} + {to_offset}], [{{$r1}} + {source_offset}], {num_bytes}{rest};",
        read_only_args=[to, source, *(() if valid is None else (valid,))],
        predicate=predicate,
    )

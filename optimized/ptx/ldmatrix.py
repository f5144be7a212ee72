"""`ldmatrix`: small matrices of 16-bit elements from shared memory to where `mma.sync` takes its factors.

Source: PTX ISA 9, "ldmatrix".
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute


def load_matrices(row: Any, *, transposed: bool) -> tuple[Any, ...]:  # 4 Uint32
    """Four matrices of 8 x 8. row: address in shared memory of row l % 8 of matrix l // 8, in lane l; a row has 16
    bytes, of which the address is a multiple. Lane 4 g + t gets of matrix i, in register i, elements 2 t and 2 t + 1 of
    row g; or, transposed, those of column g."""
    kind = ".trans" if transposed else ""
    return cute.arch.inline_ptx(
        f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}}];",
        write_only_types=[cutlass.Uint32] * 4,
        read_only_args=[row],
    )

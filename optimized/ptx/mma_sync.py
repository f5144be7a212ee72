"""`mma.sync`: a warp's product of small tiles on the tensor cores, factors and sums in registers.

Source: PTX ISA 9, "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import cute

_NAMES = {"bfloat16": "bf16", "float16": "f16"}


def mma_16x8x16(
    sums: Sequence[cutlass.Float32],  # 4: [16, 8]
    a: Sequence[cutlass.Int32],  # 4 registers of two elements: [16, 16], rows of k
    b: Sequence[cutlass.Int32],  # 2: [8, 16], rows of k
    dtype: str,  # of both factors: "bfloat16" or "float16"
) -> Any:  # 4 Float32
    """sums + a b^T. Lane 4 g + t holds of the sums rows g, g, g + 8, g + 8 and columns 2 t, 2 t + 1 of each; of a the
    rows g, g + 8, g, g + 8, elements 2 t and 2 t + 1 of k, and in the last two registers those 8 further on; of b row
    g, likewise."""
    name = _NAMES[dtype]
    return cute.arch.inline_ptx(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, "
        "{{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};",
        write_only_types=[cutlass.Float32] * 4,
        read_only_args=[*a, *b, *sums],
    )

"""Two numbers of 16 bits in one register, as factors of `mma.sync`, from and to float32.

Source: PTX ISA 9, "cvt".
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

_NAMES = {"bfloat16": "bf16", "float16": "f16"}


def rounded_pair(low: cutlass.Float32, high: cutlass.Float32, dtype: str) -> Any:  # Uint32
    """Each rounded to the nearest number of dtype, "bfloat16" or "float16"."""
    return cute.arch.inline_ptx(
        f"cvt.rn.{_NAMES[dtype]}x2.f32 {{$w0}}, {{$r1}}, {{$r0}};",
        write_only_types=[cutlass.Uint32],
        read_only_args=[low, high],
    )


def widened_pair(pair: cutlass.Uint32, dtype: str) -> tuple[Any, Any]:  # Float32
    """(low, high). Exact."""
    text = {
        "bfloat16": "shl.b32 {$w0}, {$r0}, 16;\nand.b32 {$w1}, {$r0}, 0xffff0000;",
        "float16": "{\n.reg .b16 low, high;\nmov.b32 {low, high}, {$r0};\n"
        "cvt.f32.f16 {$w0}, low;\ncvt.f32.f16 {$w1}, high;\n}",
    }[dtype]
    return cute.arch.inline_ptx(text, write_only_types=[cutlass.Float32] * 2, read_only_args=[pair])


def split_pair(low: cutlass.Float32, high: cutlass.Float32, dtype: str) -> tuple[Any, Any]:  # Uint32
    """(rounded, rest): each as a sum of two numbers of dtype, which together have twice its digits."""
    rounded = rounded_pair(low, high, dtype)
    rounded_low, rounded_high = widened_pair(rounded, dtype)
    return rounded, rounded_pair(low - rounded_low, high - rounded_high, dtype)

"""Loads and stores of a few bytes by address, for tiles whose layout is arithmetic on addresses.

Source: PTX ISA 9, "ld", "st".
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute


def load_shared_words(address: cutlass.Int32, *, offset: int = 0) -> tuple[Any, ...]:  # 4 Int32
    """16 bytes of shared memory at once, `offset` bytes behind an address."""
    return cute.arch.inline_ptx(
        f"ld.shared.v4.b32 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}} + {offset}];",
        write_only_types=[cutlass.Int32] * 4,
        read_only_args=[address],
    )


def store_shared_word(address: cutlass.Int32, word: cutlass.Int32, *, offset: int = 0, predicate: Any = None) -> None:
    """4 bytes to shared memory; nothing where the predicate is false."""
    cute.arch.inline_ptx(
        f"st.shared.b32 [{{$r0}} + {offset}], {{$r1}};", read_only_args=[address, word], predicate=predicate
    )


def load_global_half(address: cutlass.Int64, predicate: cutlass.Boolean, *, offset: int = 0) -> cutlass.Int32:
    """2 bytes of global memory, behind which come zeros; 0 where the predicate is false, and nothing is read there."""
    return cute.arch.inline_ptx(
        "{ .reg .pred is_read; .reg .b32 half; setp.ne.b32 is_read, {$r1}, 0; mov.b32 half, 0; "
        f"@is_read ld.global.u16 half, [{{$r0}} + {offset}]; mov.b32 {{$w0}}, half; }}",
        write_only_types=[cutlass.Int32],
        read_only_args=[address, cutlass.Int32(predicate)],
    )

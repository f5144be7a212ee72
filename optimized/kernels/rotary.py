"""What kernels that turn pairs of channels share: the tables of cosines and sines, and the rotation of one pair."""

from __future__ import annotations

from math import gcd
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.arguments import FLOAT32, require
from optimized.compile.arch import Arch
from optimized.device import Tensor, alignment_of
from optimized.kernels.heads import require_even
from optimized.kernels.precise import product
from optimized.kernels.rows import itemsize


def tables_of(head_dim: int, alignment: int) -> tuple[Any, Any]:
    """Fake tensors of float32 [P, head_dim / 2] of cosines and sines, contiguous."""
    num_positions, half = cute.sym_int(), head_dim // 2
    cos, sin = (
        make_fake_tensor(cutlass.Float32, (num_positions, half), (half, 1), assumed_align=alignment) for _ in range(2)
    )
    return cos, sin


def require_tables(operation: str, cos: Tensor, sin: Tensor, head_dim: int) -> None:
    """Errors: ValueError for an odd head_dim, or tables that are not half as wide; TypeError for those of another
    dtype than float32."""
    require_even(operation, head_dim)
    shape = (*cos.shape[:1], head_dim // 2)
    require(operation, "cos", cos, shape, FLOAT32)
    require(operation, "sin", sin, shape, FLOAT32)


def table_alignment(arch: Arch, vector: int, cos: Tensor, sin: Tensor) -> int:
    """Bytes that divide the address of each access of `vector` elements to both tables, as far as one access goes."""
    return gcd(arch.vector_bytes, vector * itemsize("float32"), alignment_of(cos, sin))


def turned_first(
    first: cutlass.Float32, second: cutlass.Float32, cos: cutlass.Float32, sin: cutlass.Float32
) -> cutlass.Float32:
    """The first of a pair of channels by its angle, in the reference's own arithmetic to the bit. It is apart from the
    second, so that one can be rounded before the other is computed, which takes fewer registers."""
    return product(first, cos) - product(second, sin)


def turned_second(
    first: cutlass.Float32, second: cutlass.Float32, cos: cutlass.Float32, sin: cutlass.Float32
) -> cutlass.Float32:
    """The second one."""
    return product(second, cos) + product(first, sin)

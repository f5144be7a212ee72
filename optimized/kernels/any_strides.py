"""Tensors that kernels read by single elements, wherever these lie.

One without elements has any strides (torch and NumPy give it 0), which host code refuses where it is told that
elements lie beside each other. So what may be empty is declared without strides. An axis of one element may have any in
any case.
"""

from __future__ import annotations

from typing import Any

from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.kernels.rows import DTYPES, itemsize


def any_strides(dtype: str, *shape: Any) -> Any:
    """A fake tensor of any strides. They have 64 bits: see `rows_of`."""
    strides = tuple(cute.sym_int64() for _ in shape)
    return make_fake_tensor(DTYPES[dtype], shape, strides, assumed_align=itemsize(dtype))

"""Tensors that kernels read by single elements, wherever these lie.

One without elements has any strides (torch and NumPy give it 0), which host code refuses where it is told that
elements lie beside each other. So what may be empty is declared without strides. An axis of one element may have any in
any case.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

_DTYPES = {"float32": cutlass.Float32, "int32": cutlass.Int32, "uint32": cutlass.Uint32}


def any_strides(dtype: str, *shape: Any) -> Any:
    """A fake tensor of any strides. They have 64 bits: see `rows_of`."""
    strides = tuple(cute.sym_int64() for _ in shape)
    return make_fake_tensor(_DTYPES[dtype], shape, strides, assumed_align=4)

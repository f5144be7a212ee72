"""NumPy arrays to torch tensors and back, bfloat16 and e4m3 included.

Apart from the helpers, so that only the tests that need torch load it.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from reference.formats import Array

_SAME_BITS = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
}
_BACK = {tensor_dtype: (bits, dtype) for dtype, (bits, tensor_dtype) in _SAME_BITS.items()}


def to_torch(array: Array) -> torch.Tensor:
    """The same bits as a tensor."""
    if array.dtype not in _SAME_BITS:
        return torch.from_numpy(array.copy())
    bits, tensor_dtype = _SAME_BITS[array.dtype]
    return torch.from_numpy(array.view(bits).copy()).view(tensor_dtype)


def from_torch(tensor: torch.Tensor) -> Array:
    """The same bits as an array."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype not in _BACK:
        return tensor.numpy()
    bits, dtype = _BACK[tensor.dtype]
    return tensor.view(torch.int16 if bits is np.int16 else torch.uint8).numpy().view(dtype)

"""NumPy arrays as tensors of torch, on any device, with their strides: bits cross, whatever the dtype."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from reference.formats import Array

Tensor = Any  # torch.Tensor


def torch_dtype(dtype: np.dtype[Any]) -> Any:
    import torch

    return getattr(torch, str(dtype))


def strides_of(array: Array) -> tuple[int, ...]:
    """In elements. Of an array without any, as torch says them of one that is contiguous: NumPy says 0."""
    if not array.size:
        return tuple(prod(max(length, 1) for length in array.shape[axis + 1 :]) for axis in range(array.ndim))
    return tuple(stride // array.itemsize for stride in array.strides)


def as_tensor(array: Array) -> Tensor:
    """In host memory, contiguous. ml_dtypes are unknown to torch's NumPy bridge: they cross as the bits they are."""
    import torch

    bits = torch.from_numpy(np.ascontiguousarray(array).view(f"i{array.itemsize}"))
    return bits.view(torch_dtype(array.dtype))


def bits_of(tensor: Tensor) -> Tensor:
    """The same elements as integers, contiguous, where they are."""
    import torch

    return tensor.contiguous().view(getattr(torch, f"int{8 * tensor.element_size()}"))


def as_array(tensor: Tensor) -> Array:
    """In host memory; the reverse of `as_tensor`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    found: Array = bits_of(tensor).cpu().numpy().view(dtype)
    return found


def place(array: Array, where: Any) -> Tensor:
    """A tensor on a device. What lies between rows that are apart is anything."""
    import torch

    tensor = torch.empty_strided(array.shape, strides_of(array), dtype=torch_dtype(array.dtype), device=where)
    return tensor.copy_(as_tensor(array)) if array.size else tensor


def place_all(arrays: Mapping[str, Array], where: Any) -> dict[str, Tensor]:
    """The arrays of one call. Those that are slices of one array are slices of one tensor."""
    wholes: dict[int, Tensor] = {}
    placed = {}
    for name, array in arrays.items():
        whole = array.base
        if whole is None or sum(other.base is whole for other in arrays.values()) == 1:
            placed[name] = place(array, where)
            continue
        if id(whole) not in wholes:
            wholes[id(whole)] = place(whole, where)
        offset = (_address(array) - _address(whole)) // array.itemsize
        placed[name] = wholes[id(whole)].as_strided(array.shape, strides_of(array), offset)
    return placed


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address

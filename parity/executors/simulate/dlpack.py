"""Host memory handed to compiled host code as memory of a GPU: DLPack capsules that name CUDA as the device.

Source: DLPack 1.1, `dlpack.h`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

from parity.executors.placement import strides_of
from reference.formats import Array, DType

CUDA = 2  # DLPack's number of the kind of device
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # by NumPy's letter
_CODES = {
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
    "float8_e8m0fnu": 14,
    "float4_e2m1fn": 17,
}
_NAME = b"dltensor"


class _Tensor(Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class ManagedTensor(Structure):
    """`DLManagedTensor`. Without a deleter: whoever made the capsule keeps it for as long as it is used."""

    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p))


def managed_tensor(array: Array) -> ManagedTensor:
    """What describes an array: its own memory, shape and strides, on the GPU 0."""
    ndim = array.ndim
    shape = (c_int64 * ndim)(*array.shape)
    strides = (c_int64 * ndim)(*strides_of(array))
    code = _code(array.dtype)
    bits = 8 * array.itemsize
    return ManagedTensor(_Tensor(address_of(array), CUDA, 0, ndim, code, bits, 1, shape, strides, 0))


def capsule(tensor: ManagedTensor) -> Any:
    """For `__dlpack__`. It is valid while `tensor` lives, and can be used once."""
    new = ctypes.pythonapi.PyCapsule_New
    new.argtypes, new.restype = (c_void_p, ctypes.c_char_p, c_void_p), ctypes.py_object
    return new(ctypes.addressof(tensor), _NAME, None)


def address_of(array: Array) -> int:
    """Of the first element."""
    return array.__array_interface__["data"][0]


def _code(dtype: DType) -> int:
    code = _CODES.get(str(dtype), _KINDS.get(dtype.kind))
    if code is None:
        raise ValueError(f"DLPack has no name for {dtype}")
    return code

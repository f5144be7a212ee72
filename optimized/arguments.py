"""What host code demands of the tensors it is called with: the checks of every operation, and their errors.

Every error names the operation, the argument, what it is, and what it must be: TypeError for a dtype, ValueError for
the rest. Checks come before anything else, so that a call without tokens is checked as well. That a row is contiguous,
and that a tensor is on the GPU, is checked by the compiled host code.
"""

from __future__ import annotations

from math import prod
from typing import NoReturn

from optimized.device import Device, Tensor, dtype_of

FLOATS = ("float32", "float16", "bfloat16")
HALVES = ("bfloat16", "float16")  # factors of tensor cores
FLOAT32 = ("float32",)
INT32 = ("int32",)
UINT32 = ("uint32",)


def sizes_of(
    operation: str,
    name: str,
    tensor: Tensor,
    axes: tuple[str, ...],
    dtypes: tuple[str, ...] = FLOATS,
    *,
    may_be_empty: bool = False,
) -> tuple[int, ...]:
    """The shape of a tensor that says how large others are. Only its first size may be 0, or any if may_be_empty."""
    shape = tensor.shape
    is_empty = 0 in shape and 0 in shape[1:] and not may_be_empty
    if len(shape) != len(axes) or is_empty or dtype_of(tensor) not in dtypes:
        condition = "" if may_be_empty else f", none of {', '.join(axes[1:])} being 0"
        _refuse(operation, name, tensor, dtypes, f"[{', '.join(axes)}]{condition}")
    return shape


def require(operation: str, name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Is it of this shape, and of one of these dtypes?"""
    if tensor.shape != shape or dtype_of(tensor) not in dtypes:
        _refuse(operation, name, tensor, dtypes, str(list(shape)))


def require_apart(operation: str, name: str, tensor: Tensor, length: int) -> None:
    """Of a tensor that is written: does nothing that one index of an axis has reach into what the next one has?

    length: elements of a row, which is all that one index of the first axis has."""
    shape, strides = tensor.shape, tensor.stride()
    if 0 in shape:
        return
    span = 1  # from the first to the last element of one index
    for axis in range(len(shape) - 1, 0, -1):
        if strides[axis] < span and shape[axis] > 1:
            raise ValueError(
                f"{operation}: {name} is {list(shape)} with strides {list(strides)}, of which that of axis {axis} must "
                f"be {span} or more; {name} is written, so its elements must not overlap"
            )
        span += (shape[axis] - 1) * strides[axis]
    if strides[0] < max(length, span) and shape[0] > 1:
        raise ValueError(
            f"{operation}: rows of {name} have {length} elements and begin {strides[0]} apart; "
            f"{name} is written, so its rows must not overlap"
        )


def require_two(operation: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Are two tensors that are written not one?"""
    if _is_one(tensor, other):
        raise ValueError(
            f"{operation}: {name} and {other_name} are the same memory; both are written, so they must differ"
        )


def require_unread(operation: str, name: str, tensor: Tensor, **read: Tensor | None) -> None:
    """Is a tensor that is written none of these, of which every row of it wants all, or another's?"""
    for other_name, other in read.items():
        if other is not None and _is_one(tensor, other):
            raise ValueError(
                f"{operation}: {name} and {other_name} are the same memory; {other_name} is read while {name} is "
                "written, so they must differ"
            )


def _is_one(tensor: Tensor, other: Tensor) -> bool:
    """Do they begin at one place?"""
    return tensor is other or 0 != tensor.data_ptr() == other.data_ptr()


def output(operation: str, name: str, out: Tensor | None, device: Device, shape: tuple[int, ...], dtype: str) -> Tensor:
    """What the caller gave to be written to, checked; new memory if nothing."""
    if out is None:
        return device.empty(shape, dtype)
    require(operation, name, out, shape, (dtype,))
    require_apart(operation, name, out, prod(shape[1:]))
    return out


def require_at_least_one(operation: str, name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{operation}: {name} is {count}; it must be 1 or more")


def _refuse(operation: str, name: str, tensor: Tensor, dtypes: tuple[str, ...], shape: str) -> NoReturn:
    dtype = dtype_of(tensor)
    kinds = " or ".join(dtypes)
    error = ValueError if dtype in dtypes else TypeError
    raise error(f"{operation}: {name} is {dtype} {list(tensor.shape)}; it must be {kinds} {shape}")

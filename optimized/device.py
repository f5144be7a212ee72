"""What host code asks of the machine that holds its tensors: memory, and a kernel's launch.

Host code knows tensors by `shape`, `dtype`, `stride()` and `data_ptr()` alone. Tensors of torch on a GPU are one kind;
`Outline` has shapes and no memory, and stands where kernels are to be compiled and no GPU is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any, Protocol

import ml_dtypes  # noqa: F401, by which NumPy knows "bfloat16"
import numpy as np

from optimized.compile.arch import Arch, arch_of_capability
from optimized.compile.kernel import Kernel
from optimized.compile.library import library
from optimized.counters import NUM_COUNTERS, CounterNumbers

Tensor = Any  # torch.Tensor, Outline, or another kind that carries its `panel_device`


class Device(Protocol):
    """A chip, or what stands for one."""

    arch: Arch
    num_sms: int

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Memory that holds anything."""

    def run(self, kernel: Kernel, *tensors: Tensor) -> None:
        """Launch, on the current stream."""

    def barrier_counter(self) -> Tensor:  # i32 [1]
        """For one launch, on the current stream, that is to be made now: see `grid_barrier`. Errors: RuntimeError."""


def device_of(tensor: Tensor) -> Device:
    """Errors: ValueError for a tensor in host memory."""
    device = getattr(tensor, "panel_device", None)
    if device is not None:
        return device
    if tensor.device.type != "cuda":
        raise ValueError(f"the optimized panel computes on a GPU; this tensor is on {tensor.device}")
    return _gpu(tensor.device.index)


def dtype_of(tensor: Tensor) -> str:
    """As `reference.formats` names it: "bfloat16"."""
    return _name_of(tensor.dtype)


@cache
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def alignment_of(*tensors: Tensor) -> int:
    """The largest power of two, up to 256 bytes, that divides every address."""
    addresses = 256
    for tensor in tensors:
        addresses |= tensor.data_ptr()
    return addresses & -addresses


def part_of(tensor: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], first: int = 0) -> Tensor:
    """Some elements of a tensor, as one of another shape, in the same memory. strides: elements, in the memory; first:
    how many elements behind the tensor's first one it begins. That they are the tensor's is not checked."""
    part = getattr(tensor, "part", None)  # torch's tensors have none, on whatever device they say they are
    if part is not None:
        return part(shape, strides, first)
    return tensor.as_strided(shape, strides, tensor.storage_offset() + first)


def libraries_take(tensor: Tensor) -> bool:
    """Can libraries compute with it that come as machine code, behind torch? Of an outline they can be asked for."""
    return isinstance(tensor, Outline) or getattr(tensor, "is_cuda", False)


class Gpu:
    """One that torch knows."""

    def __init__(self, index: int) -> None:
        """Errors: RuntimeError while a graph is captured, into which nothing of this may go."""
        import torch

        with torch.cuda.device(index):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"the optimized panel is first used on cuda:{index} while a graph is captured: "
                    "call an operation, of however few tokens, before that"
                )
        properties = torch.cuda.get_device_properties(index)
        self.arch = arch_of_capability(properties.major, properties.minor)
        self.num_sms: int = properties.multi_processor_count
        self._index = index
        self._name = f"cuda:{index}"
        self._torch = torch
        self._counters = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=self._name)
        torch.cuda.synchronize(index)  # so that they are 0 for every stream
        self._numbers = CounterNumbers(NUM_COUNTERS)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=self._name)

    def run(self, kernel: Kernel, *tensors: Tensor) -> None:
        library().load(kernel, self.arch)(*tensors)

    def barrier_counter(self) -> Tensor:
        cuda = self._torch.cuda
        with cuda.device(self._index):
            number = self._numbers.take(cuda.current_stream().cuda_stream, cuda.is_current_stream_capturing())
        return self._counters[number : number + 1]


_gpu = cache(Gpu)


@dataclass(frozen=True)
class Outline:
    """A tensor's shape, without memory."""

    shape: tuple[int, ...]
    dtype: str
    panel_device: CompileOnly
    strides: tuple[int, ...] | None = None  # None: contiguous
    address: int = 0  # as if it had one: what it is a multiple of

    def stride(self, dim: int | None = None) -> Any:
        strides = self.strides or tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        return strides if dim is None else strides[dim]

    def data_ptr(self) -> int:
        return self.address

    def part(self, shape: tuple[int, ...], strides: tuple[int, ...], first: int) -> Outline:
        address = self.address + first * np.dtype(self.dtype).itemsize
        return replace(self, shape=shape, strides=strides, address=address)


@dataclass
class CompileOnly:
    """Stands for a chip: what would be launched is handed to `launched`, and not run."""

    arch: Arch
    launched: Callable[[Kernel, tuple[Tensor, ...]], None]
    num_sms: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_sms = self.arch.num_sms

    def empty(self, shape: tuple[int, ...], dtype: str) -> Outline:
        return Outline(shape, dtype, self)

    def run(self, kernel: Kernel, *tensors: Tensor) -> None:
        self.launched(kernel, tensors)

    def barrier_counter(self) -> Outline:
        return Outline((1,), "int32", self)

"""What host code asks of the machine that holds its tensors: memory, and a kernel's launch.

Host code knows tensors by `shape`, `dtype`, `stride()` and `data_ptr()` alone. Tensors of torch on a GPU are one kind;
`Outline` has shapes and no memory, and stands where kernels are to be compiled and no GPU is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, Protocol

from optimized.compile.arch import Arch, arch_of_capability
from optimized.compile.kernel import Kernel
from optimized.compile.library import library

Tensor = Any  # torch.Tensor, Outline, or another kind that carries its `panel_device`


class Device(Protocol):
    """A chip, or what stands for one."""

    arch: Arch
    num_sms: int

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Memory that holds anything."""

    def run(self, kernel: Kernel, *tensors: Tensor) -> None:
        """Launch, on the current stream."""


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
    return str(tensor.dtype).removeprefix("torch.")


def alignment_of(*tensors: Tensor) -> int:
    """The largest power of two, up to 256 bytes, that divides every address."""
    addresses = 256
    for tensor in tensors:
        addresses |= tensor.data_ptr()
    return addresses & -addresses


class Gpu:
    """One that torch knows."""

    def __init__(self, index: int) -> None:
        import torch

        properties = torch.cuda.get_device_properties(index)
        self.arch = arch_of_capability(properties.major, properties.minor)
        self.num_sms: int = properties.multi_processor_count
        self._name = f"cuda:{index}"
        self._torch = torch

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=self._name)

    def run(self, kernel: Kernel, *tensors: Tensor) -> None:
        library().load(kernel, self.arch)(*tensors)


_gpu = cache(Gpu)


@dataclass(frozen=True)
class Outline:
    """A tensor's shape, without memory."""

    shape: tuple[int, ...]
    dtype: str
    panel_device: CompileOnly
    strides: tuple[int, ...] | None = None  # None: contiguous

    def stride(self, dim: int | None = None) -> Any:
        strides = self.strides or tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        return strides if dim is None else strides[dim]

    def data_ptr(self) -> int:
        return 0


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

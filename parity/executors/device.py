"""Runs calls on the GPU at hand, in memory that is poisoned around and beneath them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optimized.compile.arch import Arch, arch_of_capability
from optimized.compile.kernel import Kernel
from optimized.device import Device, Tensor, device_of
from parity.executors.executor import Skip
from parity.executors.placement import as_array, as_tensor, bits_of
from parity.executors.poisoned import GUARD, Layout, Placed, PoisonedExecutor, contiguous
from parity.judge import Expectation
from parity.twin import Call, Twin
from reference.formats import Array


class DeviceExecutor(PoisonedExecutor):
    """On one GPU of this machine."""

    name = "device"

    def __init__(self, index: int = 0) -> None:
        """Errors: Skip where there is no GPU."""
        import torch

        if not torch.cuda.is_available():
            raise Skip("there is no GPU here")
        self._torch = torch
        self._where = torch.device("cuda", index)
        properties = torch.cuda.get_device_properties(index)
        self.arch: Arch = arch_of_capability(properties.major, properties.minor)
        self.chip: str | None = properties.name
        self._device = PoisonedDevice(self, device_of(torch.empty(0, device=self._where)))

    def run_once(
        self,
        twin: Twin,
        call: Call,
        expected: Sequence[Expectation],
        poison: int,
        memory: dict[str, Placed] | None = None,
        *,
        gives_out: bool = True,
    ) -> list[Array]:
        self._device.begin(poison)
        try:
            return super().run_once(twin, call, expected, poison, memory, gives_out=gives_out)
        finally:
            self._device.begin(poison)

    def allocate(self, layout: Layout, poison: int, *, is_input: bool, at: _Placed | None = None) -> _Placed:
        if at is not None:
            at.memory.fill_(poison)
            return replace(at, poison=poison)
        torch = self._torch
        itemsize = layout.dtype.itemsize
        guard = GUARD // itemsize
        size = (layout.offset + layout.span + 2 * guard) * itemsize
        memory = torch.full((size,), poison, dtype=torch.uint8, device=self._where)
        typed = memory.view(getattr(torch, str(layout.dtype)))
        view = typed.as_strided(layout.shape, layout.strides, guard + layout.offset)
        view.panel_device = self._device
        return _Placed(layout, memory, view, poison)

    def own(self) -> Sequence[_Placed]:
        return self._device.own

    def wait(self) -> None:
        self._torch.cuda.synchronize()


class PoisonedDevice:
    """A GPU, as host code knows it, whose memory is poisoned, and kept to be looked at."""

    def __init__(self, executor: DeviceExecutor, gpu: Device) -> None:
        self.arch = gpu.arch
        self.num_sms = gpu.num_sms
        self.own: list[_Placed] = []
        self._executor = executor
        self._gpu = gpu
        self._poison = 0

    def begin(self, poison: int) -> None:
        """Forget what was allocated; what will be is filled with that byte."""
        self.own = []
        self._poison = poison

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        layout = contiguous(f"scratch {len(self.own)}", tuple(shape), np.dtype(dtype))
        self.own.append(self._executor.allocate(layout, self._poison, is_input=False))
        return self.own[-1].view

    def run(self, kernel: Kernel, *tensors: Tensor) -> None:
        self._gpu.run(kernel, *tensors)

    def barrier_counter(self) -> Tensor:
        return self._gpu.barrier_counter()


@dataclass(frozen=True)
class _Placed:
    """An array on the GPU between guards."""

    layout: Layout
    memory: Any  # uint8, guards included
    view: Any
    poison: int

    def fill(self, array: Array) -> None:
        source = as_tensor(array).to(self.view.device)
        if self.view.shape == source.shape:
            self.view.copy_(source)
            return
        for first in range(0, len(self.view), len(source)):
            rows = self.view[first : first + len(source)]
            rows.copy_(source[: len(rows)])

    def everything(self) -> Any:
        return self.memory.clone()

    def is_still(self, everything: Any) -> bool:
        import torch

        return torch.equal(everything, self.memory)

    def has_clean_surroundings(self) -> bool:
        import torch

        view = self.view
        clean = torch.full_like(self.memory, self.poison)
        clean.view(view.dtype).as_strided(view.shape, view.stride(), view.storage_offset()).copy_(view)
        return torch.equal(clean, self.memory)

    def repeats(self, rows: int) -> bool:
        import torch

        bits = bits_of(self.view)
        whole = len(bits) // rows * rows
        same = (bits[:whole].unflatten(0, (-1, rows)) == bits[:rows]).all()
        return bool(same) and torch.equal(bits[whole:], bits[: len(bits) - whole])

    def read(self, rows: int | None) -> Array:
        return np.array(as_array(self.view[:rows]))  # a copy, wherever the memory is

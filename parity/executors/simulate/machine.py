"""A simulated chip as the machine of the optimized panel's runner: a whole model's steps, with every check of the
simulator."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from optimized.compile.arch import Arch
from optimized.compile.kernel import Kernel
from optimized.compile.library import Library, library
from optimized.device import Device
from optimized.model.machine import Read
from parity.executors.poisoned import contiguous
from parity.executors.simulate.checked_gpu import CheckedGpu
from parity.executors.simulate.device import SimulatedDevice
from parity.executors.simulate.memory import SimulatedArray, SimulatedTensor
from parity.executors.simulate.program import Runtime
from reference.formats import Array
from simulators.gpu.chip import CHIPS

POISON = 0xFF  # of memory that nothing was written to: NaN
Launch = tuple[Kernel, tuple[Any, ...]]


class Recording:
    """Launches to be made again, as a CUDA graph keeps them: addresses, and the memory that was allocated meanwhile."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.memory: list[SimulatedTensor] = []

    def add(self, kernel: Kernel, tensors: tuple[Any, ...]) -> None:
        addresses = (one.at_address() if isinstance(one, SimulatedTensor) else one for one in tensors)
        self.launches.append((kernel, tuple(addresses)))


class LastingDevice(SimulatedDevice):
    """Memory is the simulated GPU's for as long as a tensor of it lives. `recording`: what happens is added to it."""

    recording: Recording | None = None

    def run(self, kernel: Kernel, *tensors: Any) -> None:
        if self.recording is not None:
            self.recording.add(kernel, tensors)
        super().run(kernel, *tensors)
        self.launched.clear()

    def empty(self, shape: tuple[int, ...], dtype: str) -> SimulatedTensor:
        array = SimulatedArray.poisoned(contiguous("memory", shape, np.dtype(dtype)), POISON, self)
        if array.layout.span:
            self._add(array, is_initialized=False)
            weakref.finalize(array.view, self._runtime.gpu.memory.remove, array.view.data_ptr())
        if self.recording is not None:
            self.recording.memory.append(array.view)
        return array.view


class SimulatedMachine:
    def __init__(self, arch: Arch, kernels: Library | None = None) -> None:
        chip = CHIPS[arch.name]
        self.gpu = CheckedGpu(chip)
        self._lasting = LastingDevice(Runtime(self.gpu, chip), arch, kernels or library())
        self.device: Device = self._lasting

    def launching(self) -> AbstractContextManager[None]:
        return nullcontext()

    def fill(self, tensor: SimulatedTensor, values: Array) -> None:
        tensor.array[...] = values
        if values.size:
            self.gpu.memory.note_written(tensor.data_ptr(), tensor.array.nbytes)

    def put(self, arrays: Mapping[str, Array]) -> dict[str, SimulatedTensor]:
        tensors = {name: self.device.empty(array.shape, str(array.dtype)) for name, array in arrays.items()}
        for name, array in arrays.items():
            self.fill(tensors[name], array)
        return tensors

    def copy(self, source: SimulatedTensor, out: SimulatedTensor) -> None:
        self.fill(out, source.array)

    def read(self, tensors: Sequence[SimulatedTensor]) -> Read:
        arrays = [tensor.array.copy() for tensor in tensors]
        return lambda: arrays

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        recording = self._lasting.recording = Recording()
        try:
            launches()
        finally:
            self._lasting.recording = None

        def replay() -> None:
            for kernel, tensors in recording.launches:
                self.device.run(kernel, *tensors)

        return replay

    def free_bytes(self) -> int:
        return CHIPS[self.device.arch.name].global_bytes

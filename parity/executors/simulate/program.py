"""A compiled kernel with its host function, linked against a simulated GPU."""

from __future__ import annotations

import threading
from typing import Any

from parity.executors.simulate.entry_points import EntryPoints, Gpu
from parity.executors.simulate.object_linker import ObjectLinker
from simulators.gpu.chip import Chip
from simulators.gpu.ptx.module import Module


class Runtime:
    """Stands for CUDA's runtime on a machine with one GPU, the given chip."""

    def __init__(self, gpu: Gpu, chip: Chip) -> None:
        self.gpu = gpu
        self.chip = chip
        self._entry_points = EntryPoints(gpu, chip)
        self._linker = ObjectLinker(self._entry_points.callbacks)
        self._lock = threading.Lock()

    def link(self, data: bytes, function: str, module: Module) -> Program:
        """data: an object file as `export_to_c` writes it. function: the name it was exported by. module: the PTX that
        its machine code was made of."""
        return Program(self, self._linker.link(data, function), module)

    def call(self, function: Any, module: Module, tensors: tuple[Any, ...]) -> None:
        """Errors: what a callback raised, as it was raised; else what the host function says is wrong."""
        with self._lock:
            self._entry_points.module, self._entry_points.error = module, None
            try:
                function(*tensors)
            except Exception:
                if self._entry_points.error is None:
                    raise
            if self._entry_points.error is not None:
                raise self._entry_points.error


class Program:
    """To be called as a loaded kernel is, with tensors that have `__dlpack__`."""

    def __init__(self, runtime: Runtime, function: Any, module: Module) -> None:
        self.module = module
        self._runtime = runtime
        self._function = function

    def __call__(self, *tensors: Any) -> None:
        """Errors: TypeError or ValueError of the host function, for tensors that it is not made for; CudaError for what
        the chip refuses; those of the simulator."""
        self._runtime.call(self._function, self.module, tensors)

"""A simulated chip, as host code of the optimized panel knows devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from optimized.compile.arch import Arch
from optimized.compile.artifact import Resources
from optimized.compile.kernel import Kernel
from optimized.compile.library import Library
from parity.executors.poisoned import Layout, contiguous
from parity.executors.simulate.memory import SimulatedArray, SimulatedTensor
from parity.executors.simulate.program import Program, Runtime
from simulators.gpu.ptx.parser import parse


class SimulatedDevice:
    """Memory within `memory()`; kernels from the library, linked once."""

    def __init__(self, runtime: Runtime, arch: Arch, library: Library) -> None:
        self.arch = arch
        self.num_sms = runtime.chip.num_sms
        self._runtime = runtime
        self._library = library
        self._programs: dict[tuple[Kernel, bool], tuple[Program, tuple[Resources, ...]]] = {}
        self.line_info = False  # kernels are compiled with the lines of their source, so that errors name these
        self._allocated: list[SimulatedArray] = []
        self.own: list[SimulatedArray] = []  # what host code has asked for since `memory()` was entered
        self._poison = 0xFF
        self._counter: SimulatedArray | None = None
        self.launched: list[Resources] = []  # of the kernels that ran since `memory()` was entered

    @contextmanager
    def memory(self, poison: int) -> Iterator[None]:
        """What is allocated inside, filled with that byte, is the simulated GPU's until the end."""
        self._poison = poison
        self.launched = []
        self.own = []
        try:
            yield
        except BaseException:
            if self._counter is not None:  # blocks may not have come to it that should have
                self._allocated.append(self._counter)
                self._counter = None
            raise
        finally:
            for one in self._allocated:
                self._runtime.gpu.memory.remove(one.view.data_ptr())
            self._allocated = []

    def allocate(self, layout: Layout, *, is_initialized: bool, at: SimulatedArray | None = None) -> SimulatedArray:
        """Between guards that are not the simulated GPU's. is_initialized: may kernels read before they write? at: an
        array of that layout, whose memory it takes."""
        array = SimulatedArray.poisoned(layout, self._poison, self) if at is None else at.again(self._poison)
        if layout.span:
            self._add(array, is_initialized=is_initialized)
            self._allocated.append(array)
        return array

    def empty(self, shape: tuple[int, ...], dtype: str) -> SimulatedTensor:
        name = f"scratch {len(self._allocated)}"
        self.own.append(self.allocate(contiguous(name, shape, np.dtype(dtype)), is_initialized=False))
        return self.own[-1].view

    def barrier_counter(self) -> SimulatedTensor:
        """One for all launches, which follow each other."""
        if self._counter is None:
            self._counter = SimulatedArray.poisoned(contiguous("barrier counter", (1,), np.dtype(np.int32)), 0, self)
            self._add(self._counter, is_initialized=True)
        return self._counter.view

    def run(self, kernel: Kernel, *tensors: SimulatedTensor) -> None:
        program, resources = self._program(kernel)
        self.launched += resources
        program(*tensors)

    def _add(self, array: SimulatedArray, *, is_initialized: bool) -> None:
        layout = array.layout
        size = layout.span * layout.dtype.itemsize
        self._runtime.gpu.memory.add(array.view.data_ptr(), size, layout.name, is_initialized=is_initialized)

    def _program(self, kernel: Kernel) -> tuple[Program, tuple[Resources, ...]]:
        key = kernel, self.line_info
        if key not in self._programs:
            artifact = self._library.artifact(kernel, self.arch, line_info=self.line_info)
            program = self._runtime.link(artifact.object, artifact.function, parse(artifact.ptx))
            self._programs[key] = program, artifact.resources
        return self._programs[key]

"""Runs calls on a simulated GPU: compiled host code, its launches and PTX, in this machine's memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from optimized.compile.arch import Arch
from optimized.compile.artifact import Resources
from optimized.compile.library import Library, library
from parity.executors.executor import Expected, Fault, Outcome, Skip
from parity.executors.poisoned import POISONS, Layout, Placed, PoisonedExecutor
from parity.executors.simulate.checked_gpu import CheckedGpu
from parity.executors.simulate.device import SimulatedDevice
from parity.executors.simulate.entry_points import Gpu
from parity.executors.simulate.memory import SimulatedArray
from parity.executors.simulate.program import Runtime
from parity.judge import Expectation
from parity.twin import Call, Twin
from reference.formats import Array
from simulators.gpu.chip import CHIPS
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction

HOSTILE_SEED = 1  # of the second call's order, where launches are small
MOST_APART = 2**30  # elements from an output's first row to its last
MOST_ELEMENTS = 2**24  # of an array with repeated rows, an output too: more take hours


class SimulateExecutor(PoisonedExecutor):
    """On one chip of the architecture's."""

    name = "simulate"

    def __init__(self, arch: Arch, kernels: Library | None = None, gpu: Gpu | None = None) -> None:
        """gpu: what is launched on; None: one that simulates the chip, with all checks."""
        chip = CHIPS[arch.name]
        self._gpu = gpu or CheckedGpu(chip)
        self.arch = arch
        self.chip: str | None = chip.name
        self._device = SimulatedDevice(Runtime(self._gpu, chip), arch, kernels or library())

    def run(self, twin: Twin, call: Call, expected: Sequence[Expectation], then: Expected | None = None) -> Outcome:
        rows = [len(one.like) * call.out_strides.get(one.name, 0) for one in expected]
        if max(rows, default=0) > MOST_APART:
            raise Skip(f"an output that spans more than {MOST_APART} elements takes too much memory to simulate")
        if call.repeated:
            shapes = [call.arrays[name].shape for name in call.repeated] + [one.like.shape for one in expected]
            elements = max(call.repeated.values()) * max(prod(shape[1:]) for shape in shapes)
            if elements > MOST_ELEMENTS:
                raise Skip(f"arrays of more than {MOST_ELEMENTS} elements take too long to simulate")
        try:
            return super().run(twin, call, expected, then)
        except (Fault, SimulatorError) as error:
            if twin.library and isinstance(error, UnsupportedInstruction):
                name = error.instruction.name
                raise Skip(
                    f"the simulator does not know {name}, which {twin.library} uses for {self.arch.name}"
                ) from error
            # Once more, with kernels that know the lines of their source: the error then names these.
            self._device.line_info = True
            try:
                super().run(twin, call, expected, then)
            finally:
                self._device.line_info = False
            raise

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
        if isinstance(self._gpu, CheckedGpu):
            self._gpu.hostile_seed = None if poison == POISONS[0] else HOSTILE_SEED
        with self._device.memory(poison):
            return super().run_once(twin, call, expected, poison, memory, gives_out=gives_out)

    def allocate(
        self, layout: Layout, poison: int, *, is_input: bool, at: SimulatedArray | None = None
    ) -> SimulatedArray:
        return self._device.allocate(layout, is_initialized=is_input, at=at)

    def own(self) -> Sequence[SimulatedArray]:
        return self._device.own

    def wait(self) -> None:
        """A launch ends before it returns."""

    def resources(self) -> Sequence[Resources]:
        return self._device.launched

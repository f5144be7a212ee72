"""A simulated GPU: give it memory, a PTX module and a launch.

memory = np.zeros(1024, np.float32)
gpu = Gpu(H200)
gpu.memory.add_array(memory, "x")
module = parse(ptx_text)
gpu.launch(module, Launch("kernel", (4, 1, 1), (256, 1, 1), parameters=struct.pack("<Q", memory.ctypes.data)))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from simulators.gpu.chip import Chip
from simulators.gpu.errors import SimulatorError
from simulators.gpu.instructions.program import program_of
from simulators.gpu.launch import Launch
from simulators.gpu.limits import check_launch, resident_blocks
from simulators.gpu.machine.late_stores import LateStores
from simulators.gpu.machine.machine import MAX_INSTRUCTIONS, Machine
from simulators.gpu.machine.program import Program
from simulators.gpu.machine.schedule import Adversarial
from simulators.gpu.memory.global_memory import GlobalMemory
from simulators.gpu.ptx.module import Module
from simulators.gpu.report import Report
from simulators.gpu.watch import Watcher

WatcherFactory = Callable[[], Watcher]


class Gpu:
    """One chip and its global memory. Launches run one after another."""

    def __init__(
        self,
        chip: Chip,
        *,
        seed: int | None = None,
        watchers: Sequence[WatcherFactory] = (),
        max_instructions: int = MAX_INSTRUCTIONS,
    ) -> None:
        """seed: of a hostile schedule, which runs threads in random order and makes stores visible late, and of what
        registers, shared and local memory hold before they are written; None: the quick, orderly one, and zeros. It may
        be set between launches. watchers: each is made anew for each launch. max_instructions: after which a launch is
        given up, whatever number of threads executes each."""
        self.chip = chip
        self.memory = GlobalMemory()
        self.seed = seed
        self._watchers = tuple(watchers)
        self._max_instructions = max_instructions
        self._programs: dict[tuple[int, str], tuple[Module, Program]] = {}
        # Addresses of a module's own variables. Modules are kept, so that an id stays one module's.
        self._variables: dict[int, tuple[Module, dict[str, int]]] = {}
        self._held: list[np.ndarray] = []  # their memory
        self._launches = 0

    def launch(self, module: Module, launch: Launch) -> Report:
        """Run a kernel to its end.

        Errors: LaunchError for what the chip refuses; SimulatorError for what goes wrong, with what was found
        before that.
        """
        program = self._program(module, launch.kernel)
        check_launch(self.chip, program.kernel, launch, program.static_shared_bytes)
        watchers = tuple(make() for make in self._watchers)
        machine = Machine(
            self.chip,
            self.memory,
            program,
            launch,
            resident_blocks=resident_blocks(self.chip, program.kernel, launch, program.static_shared_bytes),
            num_launches=self._launches,
            schedule=None if self.seed is None else Adversarial(self.seed),
            late_stores=None if self.seed is None else LateStores(self.seed),
            noise=None if self.seed is None else np.random.default_rng(self.seed),
            watchers=watchers,
            max_instructions=self._max_instructions,
        )
        self._launches += 1
        start = time.perf_counter()
        try:
            machine.run()
        except SimulatorError as error:
            # What went wrong is often what a race did before: it is told too.
            before = [f"{finding}" for watcher in watchers for finding in watcher.findings()]
            if before:
                error.args = ("\n".join([f"{error}", "found before that:", *before]),)
            raise
        seconds = time.perf_counter() - start
        findings = tuple(finding for watcher in watchers for finding in watcher.findings())
        return Report(launch, machine.thread_instructions, seconds, findings, watchers)

    def _program(self, module: Module, name: str) -> Program:
        key = id(module), name
        if key not in self._programs:
            if name not in module.kernels:
                raise SimulatorError(f"there is no kernel {name!r}; there are: {', '.join(module.kernels) or 'none'}")
            program = program_of(module, module.kernels[name], self._addresses(module))
            self._programs[key] = module, program  # the module is kept, so that its id stays its own
        return self._programs[key][1]

    def _addresses(self, module: Module) -> dict[str, int]:
        """Of the module's variables in global and constant memory, which are placed when it is first used."""
        if id(module) not in self._variables:
            places = {}
            for one in module.variables:
                if one.space not in ("global", "const"):
                    continue
                raw = np.zeros(one.size + max(one.align, 16), np.uint8)
                start = -raw.ctypes.data % max(one.align, 16)
                raw[start : start + len(one.initial)] = np.frombuffer(one.initial, np.uint8)
                self._held.append(raw)
                places[one.name] = raw.ctypes.data + start
                self.memory.add(places[one.name], one.size, one.name)
            self._variables[id(module)] = module, places
        return self._variables[id(module)][1]

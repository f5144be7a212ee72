"""Stands for a simulated GPU: keeps what it is asked to launch, and runs nothing."""

from __future__ import annotations

from simulators.gpu.launch import Launch
from simulators.gpu.ptx.module import Module


class Recorder:
    """It is its own memory."""

    def __init__(self, error: BaseException | None = None) -> None:
        """error: raised by each launch."""
        self.launches: list[Launch] = []
        self.allocations: dict[int, tuple[int, str, bool]] = {}  # by address: size, name, initialized
        self.seen: list[dict[int, tuple[int, str, bool]]] = []  # the allocations, at each launch
        self.error = error

    @property
    def memory(self) -> Recorder:
        return self

    def add(self, address: int, size: int, name: str, *, is_initialized: bool = True) -> None:
        self.allocations[address] = size, name, is_initialized

    def remove(self, address: int) -> None:
        del self.allocations[address]

    def launch(self, module: Module, launch: Launch) -> None:
        assert launch.kernel in module.kernels
        self.launches.append(launch)
        self.seen.append(dict(self.allocations))
        if self.error is not None:
            raise self.error

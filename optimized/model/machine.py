"""What a runner asks of the machine beside launches: memory that is filled and read by the host, and launches that are
kept to be made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from optimized.device import Device, Tensor

Read = Callable[[], list[np.ndarray]]  # waits for the values of tensors


class Machine(Protocol):
    """One chip. All it does is in the order of the calls, which one thread makes at a time, within `launching`."""

    device: Device

    def launching(self) -> AbstractContextManager[Any]:
        """Inside, launches that this thread makes are this machine's."""

    def fill(self, tensor: Tensor, values: np.ndarray) -> None:
        """Write an array of the tensor's shape and dtype to it; the array may change once this has returned."""

    def put(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Arrays of a step, on the chip, for launches that are made before the next `read`."""

    def copy(self, source: Tensor, out: Tensor) -> None:
        """From one tensor to another of its shape and dtype."""

    def read(self, tensors: Sequence[Tensor]) -> Read:
        """Begin to bring tensors to the host, as they are after all launches so far. The step ends with it."""

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        """Make launches now, and have them made again, with the same tensors, by each call of what is returned."""

    def free_bytes(self) -> int:
        """Memory of the chip that nothing has."""

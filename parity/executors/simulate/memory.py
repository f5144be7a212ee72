"""Poisoned host memory that a simulated GPU knows, and tensors over it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.executors.placement import strides_of
from parity.executors.poisoned import GUARD, Layout
from parity.executors.simulate.dlpack import CUDA, address_of, capsule, managed_tensor
from reference.formats import Array, DType

ALIGNMENT = 512  # bytes, as memory of a GPU is


class SimulatedTensor:
    """An array, as host code of kernels knows tensors."""

    def __init__(self, array: Array, device: Any, whole: SimulatedTensor | None = None) -> None:
        """whole: the tensor of which it is a part, whose memory lasts as long as this does."""
        self.array = array
        self.panel_device = device
        self._whole = whole
        self._managed = managed_tensor(array)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    def stride(self, dim: int | None = None) -> Any:
        strides = strides_of(self.array)
        return strides if dim is None else strides[dim]

    def data_ptr(self) -> int:
        return address_of(self.array)

    def part(self, shape: tuple[int, ...], strides: tuple[int, ...], first: int) -> SimulatedTensor:
        """As `part_of` says."""
        size = self.dtype.itemsize
        elements = np.lib.stride_tricks.as_strided(self.array, (first + 1,), (size,))[first:]
        array = np.lib.stride_tricks.as_strided(elements, shape, tuple(stride * size for stride in strides))
        return SimulatedTensor(array, self.panel_device, self)

    def at_address(self) -> SimulatedTensor:
        """The same tensor, for whose memory somebody else must see to it that it lasts."""
        return SimulatedTensor(_unowned(self.array), self.panel_device)

    def __dlpack__(self, **_: Any) -> Any:
        return capsule(self._managed)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0


@dataclass(frozen=True)
class SimulatedArray:
    """An array between guards. The simulated GPU knows of the array alone: an access to a guard is none to memory."""

    layout: Layout
    memory: Array  # u8, guards included
    values: Array
    view: SimulatedTensor
    poison: int

    @staticmethod
    def poisoned(layout: Layout, poison: int, device: Any) -> SimulatedArray:
        size = (layout.offset + layout.span) * layout.dtype.itemsize
        memory = np.full(size + 2 * GUARD + ALIGNMENT, poison, np.uint8)
        memory = memory[-address_of(memory) % ALIGNMENT :][: size + 2 * GUARD]
        values = _laid_out(memory, layout)
        return SimulatedArray(layout, memory, values, SimulatedTensor(values, device), poison)

    def again(self, poison: int) -> SimulatedArray:
        """The same memory, poisoned anew."""
        self.memory.fill(poison)
        return replace(self, poison=poison)

    def fill(self, array: Array) -> None:
        for first in range(0, len(self.values), len(array)):
            rows = self.values[first : first + len(array)]
            rows[:] = array[: len(rows)]

    def everything(self) -> Array:
        return self.memory.copy()

    def is_still(self, everything: Array) -> bool:
        return np.array_equal(everything, self.memory)

    def has_clean_surroundings(self) -> bool:
        clean = np.full_like(self.memory, self.poison)
        _bits(_laid_out(clean, self.layout))[...] = _bits(self.values)
        return np.array_equal(clean, self.memory)

    def repeats(self, rows: int) -> bool:
        bits = _bits(self.values)
        return np.array_equal(bits[rows:], bits[:-rows])

    def read(self, rows: int | None) -> Array:
        return self.values[:rows].copy()


def _laid_out(memory: Array, layout: Layout) -> Array:
    itemsize = layout.dtype.itemsize
    first = GUARD + layout.offset * itemsize
    typed = memory[first : first + layout.span * itemsize].view(layout.dtype)
    strides = tuple(stride * itemsize for stride in layout.strides)
    return np.lib.stride_tricks.as_strided(typed, layout.shape, strides)


def _unowned(array: Array) -> Array:
    """The same elements, which do not last for this."""
    bits = _bits(array)
    interface = {"data": (address_of(bits), False), "shape": bits.shape, "strides": bits.strides, "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface | {"typestr": bits.dtype.str})).view(array.dtype)


def _bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")

"""Runs calls on the GPU at hand, in memory that is poisoned around and beneath them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.names import load_function
from optimized.compile.arch import Arch, arch_of_capability
from parity.executors.executor import Fault, Outcome, Skip
from parity.judge import Expectation
from parity.twin import Call, Twin
from reference.formats import Array

GUARD = 4096  # bytes before and after each array
# Of every byte, in the first call and in the second: NaN in each floating-point format, but -1 in integers, which some
# outputs are full of; then a number that no output holds, where NaN may be right.
POISONS = (0xFF, 0x7F)


class DeviceExecutor:
    """On one GPU of this machine."""

    name = "device"
    computes = True

    def __init__(self, index: int = 0) -> None:
        """Errors: Skip where there is no GPU."""
        import torch

        if not torch.cuda.is_available():
            raise Skip("there is no GPU here")
        self._torch = torch
        self._where = torch.device("cuda", index)
        properties = torch.cuda.get_device_properties(index)
        self.arch: Arch = arch_of_capability(properties.major, properties.minor)
        self.chip: str = properties.name

    def run(self, twin: Twin, call: Call, expected: Sequence[Expectation]) -> Outcome:
        start = time.perf_counter()
        results = [self._once(twin, call, expected, poison) for poison in POISONS]
        return Outcome(results, (), time.perf_counter() - start)

    def _once(self, twin: Twin, call: Call, expected: Sequence[Expectation], poison: int) -> list[Array]:
        placed = {name: self._place(array, call.repeated.get(name), poison) for name, array in call.arrays.items()}
        overwritten = {output.in_place for output in twin.outputs}
        fresh = [
            self._poisoned(self._repeated_shape(one.like.shape, call), one.like.dtype, poison)
            for output, one in zip(twin.outputs, expected, strict=True)
            if output.in_place is None
        ]
        own = iter(fresh)  # results are read where they must have been written, whatever the function returns
        places = [next(own) if output.in_place is None else placed[output.in_place] for output in twin.outputs]
        out = {"out": fresh[0].view if len(fresh) == 1 else tuple(one.view for one in fresh)} if fresh else {}
        before = {name: one.memory.clone() for name, one in placed.items() if name not in overwritten}
        load_function(twin.optimized)(*(one.view for one in placed.values()), **call.constants, **out)
        self._torch.cuda.synchronize()
        for name, memory in before.items():
            if not self._torch.equal(memory, placed[name].memory):
                raise Fault(f"the input {name} was written to")
        for one in (*placed.values(), *fresh):
            one.check_surroundings()
        return [
            self._taken(output.name, place.view, one.like, call)
            for output, place, one in zip(twin.outputs, places, expected, strict=True)
        ]

    def _repeated_shape(self, shape: tuple[int, ...], call: Call) -> tuple[int, ...]:
        return (max(call.repeated.values()), *shape[1:]) if call.repeated else shape

    def _place(self, array: Array, num_rows: int | None, poison: int) -> _Placed:
        shape = array.shape if num_rows is None else (num_rows, *array.shape[1:])
        strides = tuple(stride // array.itemsize for stride in array.strides)
        placed = self._poisoned(shape, array.dtype, poison, strides if array.size else None)
        source = self._as_tensor(np.ascontiguousarray(array)).to(self._where)
        if num_rows is not None and len(array):
            for first in range(0, num_rows, len(array)):
                rows = min(len(array), num_rows - first)
                placed.view[first : first + rows].copy_(source[:rows])
        elif array.size:
            placed.view.copy_(source)
        return placed

    def _as_tensor(self, array: Array) -> Any:
        """ml_dtypes are unknown to torch's NumPy bridge: they cross as the bits they are."""
        bits = self._torch.from_numpy(array.view(f"i{array.itemsize}"))
        return bits.view(getattr(self._torch, str(array.dtype)))

    def _poisoned(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], poison: int, strides: tuple[int, ...] | None = None
    ) -> _Placed:
        torch = self._torch
        of = getattr(torch, str(dtype))
        if strides is None:
            strides = torch.empty(shape, device="meta").stride()
        span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        guard = GUARD // dtype.itemsize
        memory = torch.full(((span + 2 * guard) * dtype.itemsize,), poison, dtype=torch.uint8, device=self._where)
        return _Placed(memory, memory.view(of).as_strided(shape, strides, guard), poison)

    def _taken(self, name: str, tensor: Any, like: Array, call: Call) -> Array:
        torch = self._torch
        bits = tensor.contiguous().view(getattr(torch, f"int{8 * like.itemsize}"))
        if call.repeated and len(like):
            rows = len(like)
            whole = len(bits) // rows * rows
            same = (bits[:whole].unflatten(0, (-1, rows)) == bits[:rows]).all()
            if not same or not torch.equal(bits[whole:], bits[: len(bits) - whole]):
                raise Fault(f"rows of {name} that repeat others differ from them")
            bits = bits[:rows]
        return bits.cpu().numpy().view(like.dtype)


@dataclass(frozen=True)
class _Placed:
    """An array on the GPU between guards."""

    memory: Any  # uint8, guards included
    view: Any
    poison: int

    def check_surroundings(self) -> None:
        """Before, after, and between rows that lie apart, poison must be as it was. Errors: Fault."""
        import torch

        view = self.view
        clean = torch.full_like(self.memory, self.poison)
        clean.view(view.dtype).as_strided(view.shape, view.stride(), view.storage_offset()).copy_(view)
        if not torch.equal(clean, self.memory):
            raise Fault(f"memory around an array of shape {list(view.shape)}, or between its rows, was written to")

"""Runs calls in memory that is poisoned around and beneath arrays, wherever that memory is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

from engine.names import load_function
from optimized.compile.artifact import Resources
from parity.executors.executor import Expected, Fault, Outcome, check_kind, check_returned
from parity.executors.placement import strides_of
from parity.judge import Expectation
from parity.twin import Call, Twin, as_tuple, repeated_shape
from reference.formats import Array, DType

GUARD = 4096  # bytes before and after each array
# Of every byte, in the first call and in the second: NaN in each floating-point format, but -1 in integers, which some
# outputs are full of; then a number that no output holds, where NaN may be right.
POISONS = (0xFF, 0x7F)


@dataclass(frozen=True)
class Layout:
    """Where the elements of an array lie."""

    name: str  # for messages
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    dtype: DType
    offset: int = 0  # elements of the first, behind what is aligned

    @property
    def span(self) -> int:
        """Elements from the first to the last, both and what is between them included."""
        last = sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        return 0 if 0 in self.shape else 1 + last


def contiguous(name: str, shape: tuple[int, ...], dtype: DType) -> Layout:
    """Elements one after another, the last axis fastest."""
    strides = tuple(prod(max(length, 1) for length in shape[axis + 1 :]) for axis in range(len(shape)))
    return Layout(name, shape, strides, dtype)


class Placed(Protocol):
    """An array in an executor's memory, between guards."""

    @property
    def layout(self) -> Layout: ...

    @property
    def view(self) -> Any:
        """The tensor that an operation is called with."""

    def fill(self, array: Array) -> None:
        """Write the rows of an array that is not empty, over and over where there is room for more."""

    def everything(self) -> Any:
        """A copy of the memory, guards included."""

    def is_still(self, everything: Any) -> bool:
        """Is the memory as it was copied?"""

    def has_clean_surroundings(self) -> bool:
        """Is there still poison before, after, and between rows that lie apart?"""

    def repeats(self, rows: int) -> bool:
        """Is each row, bit for bit, that which is so many rows before it?"""

    def read(self, rows: int | None) -> Array:
        """The values; the first rows alone, if told so."""


class PoisonedExecutor(ABC):
    """Runs a call twice, with different poison, and looks at what was written.

    The second call, if it is another, finds its inputs where those of the first were. It is given no memory for its
    outputs: what is returned is looked at.
    """

    computes = True

    @abstractmethod
    def allocate(self, layout: Layout, poison: int, *, is_input: bool, at: Any = None) -> Placed:
        """An array between guards of GUARD bytes, all bytes of which are poison. is_input: it will be filled. at: an
        array of that layout, whose memory it takes."""

    @abstractmethod
    def own(self) -> Sequence[Placed]:
        """What host code has asked for itself, poisoned, since `run_once` was entered."""

    @abstractmethod
    def wait(self) -> None:
        """Until all that was launched has ended."""

    def resources(self) -> Sequence[Resources]:
        """Of the kernels of the last call, where they are known."""
        return ()

    def run(self, twin: Twin, call: Call, expected: Sequence[Expectation], then: Expected | None = None) -> Outcome:
        start = time.perf_counter()
        second, of_second = then or (call, expected)
        memory: dict[str, Placed] = {}
        results = [
            self.run_once(twin, call, expected, POISONS[0], memory),
            self.run_once(twin, second, of_second, POISONS[1], memory, gives_out=False),
        ]
        return Outcome(results, self.resources(), time.perf_counter() - start)

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
        """memory: of the inputs of an earlier call, taken again; those of this one are put there."""
        memory = {} if memory is None else memory
        placed = {}
        for name, array in call.arrays.items():
            placed[name] = memory[name] = self._place(name, array, call, poison, memory.get(name))
        overwritten = {output.in_place for output in twin.outputs}
        fresh = [
            self.allocate(_layout_of_output(output.name, one.like, call), poison, is_input=False)
            for output, one in zip(twin.outputs, expected, strict=True)
            if output.in_place is None and gives_out
        ]
        out = {"out": fresh[0].view if len(fresh) == 1 else tuple(one.view for one in fresh)} if fresh else {}
        before = {name: one.everything() for name, one in placed.items() if name not in overwritten}
        returned = load_function(twin.optimized)(
            *(one.view for one in placed.values()), **call.constants, **call.launch, **out
        )
        self.wait()
        if gives_out:  # results are read where they must have been written, whatever is returned
            given = iter(fresh)
            places = [next(given) if output.in_place is None else placed[output.in_place] for output in twin.outputs]
        else:
            places = self._places_of(twin, as_tuple(returned), call, expected, placed)
        for name, everything in before.items():
            if not placed[name].is_still(everything):
                raise Fault(f"the input {name} was written to")
        for place in (*placed.values(), *fresh, *self.own()):
            if not place.has_clean_surroundings():
                shape = list(place.layout.shape)
                raise Fault(f"memory around an array of shape {shape}, or between its rows, was written to")
        return [
            _taken(output.name, place, one.like, call)
            for output, place, one in zip(twin.outputs, places, expected, strict=True)
        ]

    def _place(self, name: str, array: Array, call: Call, poison: int, at: Placed | None) -> Placed:
        num_rows, offset = call.repeated.get(name), call.offsets.get(name, 0)
        shape = array.shape if num_rows is None else (num_rows, *array.shape[1:])
        layout = replace(contiguous(name, shape, array.dtype), offset=offset)
        if array.size:
            layout = replace(layout, strides=strides_of(array))
        if at is not None and at.layout != layout:
            at = None
        placed = self.allocate(layout, poison, is_input=True, at=at)
        if array.size:
            placed.fill(array)
        return placed

    def _places_of(
        self,
        twin: Twin,
        returned: Sequence[Any],
        call: Call,
        expected: Sequence[Expectation],
        placed: Mapping[str, Placed],
    ) -> list[Placed]:
        """Where an operation that was given no memory says that its outputs are. Errors: Fault."""
        check_returned(twin, returned, {name: one.view for name, one in placed.items()})
        places = []
        for output, tensor, one in zip(twin.outputs, returned, expected, strict=True):
            if output.in_place is not None:
                places.append(placed[output.in_place])
                continue
            place = next((place for place in self.own() if place.view is tensor), None)
            if place is None:
                raise Fault(f"{output.name} is returned in memory that the device was not asked for")
            shape = repeated_shape(one.like.shape, call)
            kind = place.layout.shape, str(place.layout.dtype)
            check_kind(output.name, kind, (shape, str(one.like.dtype)))
            places.append(place)
        return places


def _layout_of_output(name: str, like: Array, call: Call) -> Layout:
    """Of memory that an operation is given for one of its outputs."""
    layout = contiguous(name, repeated_shape(like.shape, call), like.dtype)
    strides = layout.strides
    if name in call.out_strides and len(strides) > 1:
        apart = call.out_strides[name]
        if apart < strides[0]:
            raise ValueError(f"rows of {name} have {strides[0]} elements; they cannot be {apart} apart")
        strides = apart, *strides[1:]
    return replace(layout, strides=strides, offset=call.offsets.get(name, 0))


def _taken(name: str, place: Placed, like: Array, call: Call) -> Array:
    if not call.repeated or not len(like):
        return place.read(None)
    if not place.repeats(len(like)):
        raise Fault(f"rows of {name} that repeat others differ from them")
    return place.read(len(like))

"""The seam between the harness and whatever runs an operation of the optimized panel.

An executor is handed two calls and what their outputs must be; it runs them on poisoned outputs and gives both results
back, or, if it computes nothing, none. The second call has other inputs: what is kept from the first, a result or what
memory holds, is wrong then. What an executor finds wrong beside the numbers (a promise that the machine code does
not keep, memory written that is nobody's) it raises as a Fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from optimized.compile.arch import Arch
from optimized.compile.artifact import Resources
from parity.judge import Expectation
from parity.twin import Call, Twin
from reference.formats import Array


class Fault(Exception):
    """Something is wrong with how an operation was compiled or ran, whatever its numbers are."""


class Skip(Exception):
    """A case that cannot be tried here; the message says why."""


Expected = tuple[Call, Sequence[Expectation]]  # a call, and what its outputs must be


@dataclass(frozen=True)
class Outcome:
    """What running a call gave."""

    results: Sequence[Sequence[Array]]  # of each of the two calls, the outputs in order; empty if nothing was computed
    resources: Sequence[Resources]  # of the kernels that were launched
    seconds: float  # to compile, or to run


class Executor(Protocol):
    """One way to run calls."""

    name: str  # "compile", "device", "simulate"
    arch: Arch
    chip: str | None  # the name of what it runs on; None if on nothing
    computes: bool  # does it give results?

    def run(self, twin: Twin, call: Call, expected: Sequence[Expectation], then: Expected | None = None) -> Outcome:
        """then: the second call, if it is not the first once more. Errors: Fault, Skip; whatever the operation
        raises."""


def check_returned(twin: Twin, returned: Sequence[Any], given: Mapping[str, Any]) -> None:
    """given: the tensors that an operation was called with. Errors: Fault where it does not return its outputs."""
    if len(returned) != len(twin.outputs):
        raise Fault(f"{len(returned)} outputs are returned; there are {len(twin.outputs)}")
    for output, tensor in zip(twin.outputs, returned, strict=True):
        if output.in_place is not None and tensor is not given[output.in_place]:
            raise Fault(
                f"what is returned as {output.name} is not the input {output.in_place}, which is to be overwritten"
            )


def check_kind(name: str, kind: tuple[Sequence[int], str], right: tuple[Sequence[int], str]) -> None:
    """Shape and dtype of what is returned, and of the reference's own result. Errors: Fault."""
    (shape, dtype), (right_shape, right_dtype) = kind, right
    if (tuple(shape), dtype) != (tuple(right_shape), right_dtype):
        raise Fault(f"{name} is returned as {dtype}{list(shape)}; the reference's is {right_dtype}{list(right_shape)}")

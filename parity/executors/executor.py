"""The seam between the harness and whatever runs an operation of the optimized panel.

An executor is handed a call and what its outputs look like; it runs the operation twice on poisoned outputs and gives
both results back, or, if it computes nothing, none. What it finds wrong beside the numbers (a promise that the machine
code does not keep, memory written that is nobody's) it raises as a Fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from optimized.compile.arch import Arch
from optimized.compile.artifact import Resources
from parity.judge import Expectation
from parity.twin import Call, Twin
from reference.formats import Array


class Fault(Exception):
    """Something is wrong with how an operation was compiled or ran, whatever its numbers are."""


class Skip(Exception):
    """A case that cannot be tried here; the message says why."""


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

    def run(self, twin: Twin, call: Call, expected: Sequence[Expectation]) -> Outcome:
        """Errors: Fault, Skip; whatever the operation raises."""

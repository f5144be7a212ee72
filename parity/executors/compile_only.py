"""Compiles what host code would launch, and holds the machine code to what was promised of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from engine.names import load_function
from optimized.compile.arch import Arch
from optimized.compile.artifact import Artifact, Resources
from optimized.compile.kernel import Kernel
from optimized.compile.library import Library, library
from optimized.device import CompileOnly, Outline
from parity.executors.executor import Fault, Outcome
from parity.judge import Expectation
from parity.twin import Call, Twin
from reference.formats import Array

_ACCESS = re.compile(r"\b(?:ld|st)\.global(?:\.[a-z_:0-9]+)*?(?:\.v([248]))?\.[bfsu](8|16|32|64)\b")


class CompileExecutor:
    """For one architecture, without a chip."""

    name = "compile"
    chip: str | None = None
    computes = False

    def __init__(self, arch: Arch, kernels: Library | None = None) -> None:
        self.arch = arch
        self._library = kernels or library()

    def run(self, twin: Twin, call: Call, expected: Sequence[Expectation]) -> Outcome:
        start = time.perf_counter()
        artifacts: list[tuple[Kernel, Artifact]] = []

        def launched(kernel: Kernel, _: tuple[Any, ...]) -> None:
            artifacts.append((kernel, self._library.artifact(kernel, self.arch)))

        device = CompileOnly(self.arch, launched)
        outlines = [_outline(array, device, call.repeated.get(name)) for name, array in call.arrays.items()]
        load_function(twin.optimized)(*outlines, **call.constants)
        resources: list[Resources] = []
        for kernel, artifact in artifacts:
            check_promises(kernel, artifact, twin.local_bytes.get(type(kernel).__name__, 0))
            resources += artifact.resources
        return Outcome((), resources, time.perf_counter() - start)


def check_promises(kernel: Kernel, artifact: Artifact, local_bytes: int) -> None:
    """Errors: Fault."""
    for one in artifact.resources:
        if one.local_bytes > local_bytes:
            raise Fault(f"{kernel} uses {one.local_bytes} bytes of local memory a thread; {local_bytes} are expected")
    widest = widest_access(artifact.ptx)
    if kernel.widest_access > widest:
        raise Fault(f"{kernel} promises accesses of {kernel.widest_access} bytes; the widest in its PTX has {widest}")


def widest_access(ptx: str) -> int:
    """Bytes of the widest global load or store in a PTX text."""
    return max((int(count or 1) * int(bits) // 8 for count, bits in _ACCESS.findall(ptx)), default=0)


def _outline(array: Array, device: CompileOnly, num_rows: int | None) -> Outline:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    shape = array.shape if num_rows is None else (num_rows, *array.shape[1:])
    return Outline(shape, str(array.dtype), device, strides)

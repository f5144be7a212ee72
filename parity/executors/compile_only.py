"""Compiles what host code would launch, and holds the machine code to what was promised of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from math import prod
from typing import Any

from engine.names import load_function
from optimized.compile.arch import Arch, arch_named
from optimized.compile.artifact import Artifact, Resources
from optimized.compile.kernel import Kernel
from optimized.compile.library import Library, library
from optimized.compile.residency import require_resident
from optimized.device import CompileOnly, Outline
from parity.executors.executor import Expected, Fault, Outcome, check_kind, check_returned
from parity.executors.placement import strides_of
from parity.judge import Expectation, in_dtype
from parity.report.occupancy import threads_of
from parity.twin import Call, Twin, as_tuple, elements, repeated_shape
from reference.formats import Array

FEW_ELEMENTS = 1 << 20  # of all arrays: so many the reference goes through, to tell what its outputs are like
APART = 1 << 48  # bytes, from the address of one tensor to that of the next
_ACCESS = re.compile(r"\b(ld|st)\.global(?:\.[a-z_:0-9]+)*?(?:\.v([248]))?\.[bfsu](8|16|32|64)\b")


class CompileExecutor:
    """For one architecture, without a chip."""

    name = "compile"
    chip: str | None = None
    computes = False

    def __init__(self, arch: Arch, kernels: Library | None = None) -> None:
        self.arch = arch
        self._library = kernels or library()

    def run(self, twin: Twin, call: Call, expected: Sequence[Expectation], then: Expected | None = None) -> Outcome:
        start = time.perf_counter()
        artifacts: list[tuple[Kernel, Artifact]] = []

        def launched(kernel: Kernel, _: tuple[Any, ...]) -> None:
            artifacts.append((kernel, self._library.artifact(kernel, self.arch)))

        device = CompileOnly(self.arch, launched)
        outlines = {name: _outline(name, call, device) for name in call.arrays}
        returned = as_tuple(load_function(twin.optimized)(*outlines.values(), **call.constants, **call.launch))
        check_returned(twin, returned, outlines)
        _check_own(twin, call, returned, bool(artifacts))
        resources: list[Resources] = []
        for kernel, artifact in artifacts:
            check_promises(kernel, artifact, twin.local_bytes.get(type(kernel).__name__, 0))
            resources += artifact.resources
        return Outcome((), resources, time.perf_counter() - start)


def _check_own(twin: Twin, call: Call, returned: Sequence[Outline], is_launched: bool) -> None:
    """Of outputs that have memory of their own. Errors: Fault where they are not as the reference's, or where nothing
    is launched to fill them."""
    right: Sequence[Array | None] = [None] * len(returned)
    if elements(call) <= FEW_ELEMENTS:
        right = in_dtype(twin, call)
    for output, outline, like in zip(twin.outputs, returned, right, strict=True):
        if output.in_place is not None:
            continue
        if like is not None:
            shape = repeated_shape(like.shape, call)
            check_kind(output.name, (outline.shape, outline.dtype), (shape, str(like.dtype)))
        if prod(outline.shape) > 0 and not is_launched:
            raise Fault(f"{output.name} is of shape {list(outline.shape)}, and nothing is launched that writes it")


def check_promises(kernel: Kernel, artifact: Artifact, local_bytes: int) -> None:
    """Errors: Fault."""
    arch = arch_named(artifact.arch)
    for one in artifact.resources:
        if one.local_bytes > local_bytes:
            raise Fault(f"{kernel} uses {one.local_bytes} bytes of local memory a thread; {local_bytes} are expected")
        if one.shared_bytes > arch.shared_bytes_per_block:
            raise Fault(f"{kernel} takes {one.shared_bytes} bytes of shared memory a block; {arch.name} has fewer")
        if kernel.is_cooperative:
            _check_residency(kernel, artifact, one, arch)
    for what, promised in (("load", kernel.widest_access), ("store", kernel.widest_store)):
        widest = widest_access(artifact.ptx, what)
        if promised > widest:
            raise Fault(f"{kernel} promises a {what} of {promised} bytes; the widest in its PTX has {widest}")


def _check_residency(kernel: Kernel, artifact: Artifact, taken: Resources, arch: Arch) -> None:
    """By what the compiled kernel takes, not by what host code thinks it takes at most."""
    threads = threads_of(artifact, taken.kernel)
    if threads is None:
        raise Fault(f"blocks of {kernel} wait for each other, and its PTX does not say how many threads they have")
    try:
        require_resident(
            arch,
            arch.num_sms,
            kernel.waiting_blocks,
            threads=threads,
            registers=taken.registers,
            shared_bytes=taken.shared_bytes,
        )
    except ValueError as error:
        raise Fault(f"{kernel}: {error}") from error


def widest_access(ptx: str, what: str) -> int:
    """Bytes of the widest global "load" or "store" in a PTX text."""
    found = ((kind, int(count or 1) * int(bits) // 8) for kind, count, bits in _ACCESS.findall(ptx))
    return max((size for kind, size in found if kind == {"load": "ld", "store": "st"}[what]), default=0)


def _outline(name: str, call: Call, device: CompileOnly) -> Outline:
    """Each at an address of its own."""
    array, num_rows = call.arrays[name], call.repeated.get(name)
    shape = array.shape if num_rows is None else (num_rows, *array.shape[1:])
    number = list(call.arrays).index(name) + 1
    address = number * APART + call.offsets.get(name, 0) * array.itemsize
    return Outline(shape, str(array.dtype), device, strides_of(array), address)

"""Compiling one kernel for one architecture, on any machine: no GPU and no driver is asked for anything."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from cutlass import cute
from cutlass.cute.runtime import make_fake_stream

from optimized.compile.arch import Arch
from optimized.compile.artifact import Artifact, Resources
from optimized.compile.cubin import resources_of
from optimized.compile.host_code import dynamic_shared_bytes
from optimized.compile.kernel import Kernel
from optimized.compile.key import sources_are_those_of_keys


class CompileError(Exception):
    """A kernel that the compiler refused, or that no chip could run."""


def build(kernel: Kernel, arch: Arch, *, line_info: bool = False) -> Artifact:
    """The machine code, PTX and resources of a kernel. line_info: with the source's lines, for those who look for a
    fault: the same machine code, in four tenths more time and an object half as large again.

    Errors: CompileError, naming kernel, constants and arch.
    """
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="diptych-compile-") as name:
        directory = Path(name)
        options = f"--enable-tvm-ffi --gpu-arch {arch.name} --keep-ptx --keep-cubin --dump-dir {directory}"
        options += " --generate-line-info" if line_info else ""
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        try:
            compiled = cute.compile(kernel, *kernel.arguments(), stream, options=options)
            file = directory / "kernel.o"
            compiled.export_to_c(str(file), function_name=kernel.symbol)
            (cubin,) = directory.glob("*.cubin")
            resources = _resources(cubin.read_bytes(), str(compiled.ir_module))
        except Exception as error:
            raise CompileError(f"{kernel} does not compile for {arch.name}: {error}") from error
        if resources.shared_bytes > arch.shared_bytes_per_block:
            raise CompileError(
                f"{kernel} takes {resources.shared_bytes} bytes of shared memory a block; "
                f"{arch.name} has {arch.shared_bytes_per_block}"
            )
        if not sources_are_those_of_keys():
            raise CompileError(f"the sources changed while {kernel} was compiled, or before: run again")
        (ptx,) = directory.glob("*.ptx")
        return Artifact(
            kernel.symbol,
            arch.name,
            file.read_bytes(),
            ptx.read_text(),
            (resources,),
            time.perf_counter() - start,
        )


def _resources(cubin: bytes, host_code: str) -> Resources:
    (kernel,) = resources_of(cubin)
    return replace(kernel, shared_bytes=kernel.shared_bytes + dynamic_shared_bytes(host_code))

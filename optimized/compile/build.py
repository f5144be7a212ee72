"""Compiling one kernel for one architecture, on any machine: no GPU and no driver is asked for anything."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from cutlass import cute
from cutlass.cute.runtime import make_fake_stream

from optimized.compile.arch import Arch
from optimized.compile.artifact import Artifact
from optimized.compile.cubin import resources_of
from optimized.compile.kernel import Kernel


class CompileError(Exception):
    """A kernel that the compiler refused."""


def build(kernel: Kernel, arch: Arch) -> Artifact:
    """The machine code, PTX and resources of a kernel. Errors: CompileError, naming kernel, constants and arch."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="diptych-compile-") as name:
        directory = Path(name)
        options = f"--enable-tvm-ffi --gpu-arch {arch.name} --keep-ptx --keep-cubin --dump-dir {directory}"
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        try:
            compiled = cute.compile(kernel, *kernel.arguments(), stream, options=options)
            file = directory / "kernel.o"
            compiled.export_to_c(str(file), function_name=kernel.symbol)
        except Exception as error:
            raise CompileError(f"{kernel} does not compile for {arch.name}: {error}") from error
        (ptx,), (cubin,) = directory.glob("*.ptx"), directory.glob("*.cubin")
        return Artifact(
            kernel.symbol,
            arch.name,
            file.read_bytes(),
            ptx.read_text(),
            resources_of(cubin.read_bytes()),
            time.perf_counter() - start,
        )

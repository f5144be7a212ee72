"""What the tests of the machine share: short PTX kernels over NumPy arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from simulators.gpu.chip import H200, Chip
from simulators.gpu.gpu import Gpu, WatcherFactory
from simulators.gpu.launch import Launch
from simulators.gpu.ptx.parser import parse
from simulators.gpu.report import Report

REGISTERS = ".reg .pred %p<16>; .reg .b16 %rs<16>; .reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .f32 %f<16>;"


def kernel(body: str, arrays: int, variables: str = "", target: str = "sm_90a") -> str:
    """A PTX text. Its kernel "k" takes pointers to arrays, %rd1, %rd2, ...; %r1 is the thread in its block, %r2 the
    block in the grid."""
    parameters = ", ".join(f".param .u64 p{i}" for i in range(arrays))
    loads = "\n".join(f"ld.param.u64 %rd{i + 1}, [p{i}];" for i in range(arrays))
    return f"""
.version 8.8
.target {target}
.address_size 64
.visible .entry k({parameters})
{{
{REGISTERS}
{variables}
{loads}
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
{body}
ret;
}}
"""


def run(
    text: str,
    arrays: Sequence[NDArray[Any]],
    *,
    grid: int = 1,
    block: int = 32,
    chip: Chip = H200,
    watchers: Sequence[WatcherFactory] = (),
    uninitialized: Sequence[int] = (),
    gpu: Gpu | None = None,
    **launch: Any,
) -> Report:
    """Launch "k" over arrays, which it may change. uninitialized: those that hold nothing."""
    gpu = gpu or Gpu(chip, watchers=watchers)
    for i, array in enumerate(arrays):
        gpu.memory.add_array(array, f"array {i}", is_initialized=i not in uninitialized)
    try:
        parameters = struct.pack(f"<{len(arrays)}Q", *[array.ctypes.data for array in arrays])
        return gpu.launch(parse(text), Launch("k", (grid, 1, 1), (block, 1, 1), parameters, **launch))
    finally:
        for array in arrays:
            gpu.memory.remove(array.ctypes.data)

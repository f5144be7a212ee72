"""A kernel that is small and compiles fast, and artifacts that need no compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import cute

from optimized.compile.artifact import Artifact, Resources
from optimized.compile.kernel import Kernel
from optimized.kernels.rows import vector_of

LENGTH = 64


@dataclass(frozen=True)
class Scale(Kernel):
    """out = factor * x, LENGTH elements."""

    factor: float
    dtype: str = "float32"

    def arguments(self) -> tuple[Any, ...]:
        return vector_of(self.dtype, LENGTH, 1), vector_of(self.dtype, LENGTH, 1)

    @cute.jit
    def __call__(self, mX: cute.Tensor, mOut: cute.Tensor, stream: Any) -> None:
        self.kernel(mX, mOut).launch(grid=[1, 1, 1], block=[LENGTH, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mOut: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        mOut[thread] = mX[thread] * self.factor


def artifact(name: str = "f", *, arch: str = "sm_90a", content: bytes = b"object") -> Artifact:
    return Artifact(name, arch, content, ".version 8.8\n", (Resources("k", 32, 0, 0),), 0.25)

"""Kernels that are wrong, each in one way that a result need not show: what the simulator's checks are for.

The rows of x, each reversed by a block of its own by way of shared memory. Lines that a test asks for end in a mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.kernel import Kernel
from optimized.device import device_of
from optimized.kernels.moe_routing import shared_counts
from reference.formats import Array

LENGTH = 128
FAULTS = ("", "no barrier", "an unwritten element", "past the end", "a wait for nothing", "too many blocks")


@dataclass(frozen=True)
class ReverseRows(Kernel):
    """One block a row."""

    fault: str

    def arguments(self) -> tuple[Any, ...]:
        rows = cute.sym_int()
        x, out = (make_fake_tensor(cutlass.Int32, (rows, LENGTH), (LENGTH, 1), assumed_align=16) for _ in range(2))
        return x, out

    @cute.jit
    def __call__(self, mX: cute.Tensor, mOut: cute.Tensor, stream: Any) -> None:
        self.kernel(mX, mOut).launch(
            grid=[mX.shape[0] * (1000 if const_expr(self.fault == "too many blocks") else 1), 1, 1],
            block=[LENGTH, 1, 1],
            stream=stream,
            cooperative=const_expr(self.fault == "too many blocks"),
        )

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mOut: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        sRow = shared_counts(LENGTH)
        if const_expr(self.fault == "past the end"):
            sRow[thread] = mX[row + 1, thread]  # past the end
        elif const_expr(self.fault == "an unwritten element"):
            if thread != 5:
                sRow[thread] = mX[row, thread]
        else:
            sRow[thread] = mX[row, thread]
        if const_expr(self.fault != "no barrier"):
            cute.arch.sync_threads()
        if const_expr(self.fault == "a wait for nothing"):
            found = cutlass.Int32(0)
            while found >= 0:  # a wait for nothing: the DSL says of a whole loop that it is here
                found = cute.arch.load(mX.iterator, cutlass.Int32, sem="acquire", scope="gpu")
        mOut[row, thread] = sRow[LENGTH - 1 - thread]  # no barrier, an unwritten element


def reference(x: Array, fault: str) -> Array:
    return x[:, ::-1].copy()


def reverse_rows(x: Any, fault: str, *, out: Any = None) -> Any:
    device = device_of(x)
    if out is None:
        out = device.empty(x.shape, "int32")
    device.run(ReverseRows(fault), x, out)
    return out

"""Programmatic dependent launch of kernels that can do nothing before their inputs are there.

Their blocks are on the chip when the last one of the launch before has ended, and the next launch's may come as early:
if that is a product, it fetches its weights meanwhile. What a launch has waited for is there for all that follow, for
each of them waits for the one before it.
"""

from __future__ import annotations

import cutlass
from cutlass import const_expr, cute


@cute.jit
def begin_dependent(pdl: cutlass.Constexpr) -> None:
    """Let the next launch begin, and wait for the results of the one before. Every thread does so first."""
    if const_expr(pdl):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()

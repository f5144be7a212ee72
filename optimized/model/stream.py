"""The residual stream of a step, and what was computed for it that is not in it yet.

A product adds to the stream as it ends. What ends otherwise, as the sum over a token's experts does, waits, and is
added by the norm that comes next, which reads the stream anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimized.device import Tensor, dtype_of
from optimized.kernels.add_rms_norm import add_rms_norm
from optimized.kernels.few_rows_launch import FEW_ROWS
from optimized.kernels.linear import linear
from optimized.kernels.rms_norm import rms_norm
from optimized.model.weights import Projection


def products_norm(x: Tensor) -> bool:
    """Do `linear` and its like normalise rows themselves, and as fast?"""
    return x.shape[0] <= FEW_ROWS and dtype_of(x) == "bfloat16"


@dataclass
class Stream:
    """x is overwritten as layers add to it."""

    x: Tensor  # [T, H]
    eps: float  # of its norms
    waiting: Tensor | None = None  # [T, H], to be added

    def normed(self, weight: Tensor) -> Tensor:  # [T, H]
        """The whole of it, normalised."""
        if self.waiting is None:
            return rms_norm(self.x, weight, self.eps, pdl=True)
        normed, self.x = add_rms_norm(self.waiting, self.x, weight, self.eps, pdl=True, out=(self.waiting, self.x))
        self.waiting = None
        return normed

    def settled(self, weight: Tensor) -> Tensor:  # [T, H]
        """x, with what waits in it. weight: of any norm."""
        if self.waiting is not None:
            self.normed(weight)
        return self.x

    @property
    def may_be_normed_by_a_product(self) -> bool:
        return self.waiting is None and products_norm(self.x)

    def add_product(self, x: Tensor, projection: Projection) -> None:
        """x W^T + b, with nothing waiting. Rounding: one, of the sum."""
        assert self.waiting is None
        self.x = linear(x, projection.weight, projection.bias, self.x, pdl=True, out=self.x)

"""Is what an executor gave what the reference says?

Continuous outputs: error in ULPs against the float64 oracle. The bound is 2 x max(e, 0.5) plus the output's floor,
where e is the error of the reference itself in its own dtype under NumPy: the optimized panel may add up in another
order. Exact outputs: every bit.

That bound lets a value pass that is truncated, or rounded once too often or too seldom: none of them errs by more than
an ULP or two. So outputs of 16 bits or fewer are held to the reference's own result too. Another order of float32 sums
changes one element in hundreds; another place of rounding changes a quarter of them, and one in 20 may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.names import load_function
from parity.twin import Call, Twin, as_tuple
from parity.ulp import ROW_SHARE, oracle, ulp_errors
from reference.formats import Array

DIFFERING_SHARE = 20  # one element in so many of a narrow output may differ from the reference's own,
FEW_DIFFERING = 2  # and so many of a small one


@dataclass(frozen=True)
class Expectation:
    """What one output of a call must be."""

    name: str
    exact: Array | None  # the very bits
    oracle: Array | None  # f64
    bound: float  # ULPs; 0 for exact outputs
    like: Array  # the reference's own result: shape and dtype
    row_share: float = ROW_SHARE  # see `Output`


@dataclass(frozen=True)
class Judgement:
    """Of one output, or of the worst of several."""

    output: str
    max_ulp: float  # infinite where NaN met a number, or an exact output differs
    bound: float
    mismatches: int  # elements beyond the bound
    worst: tuple[int, ...]  # where the largest error is
    errors: Array  # ULPs of every element, f64
    dtype: str  # of the output
    differing: int = 0  # elements of a narrow output that are not the reference's own

    @property
    def is_rounded_elsewhere(self) -> bool:
        """Do more elements differ from the reference's own than another order of sums explains?"""
        return self.differing > max(FEW_DIFFERING, self.errors.size // DIFFERING_SHARE)

    @property
    def ok(self) -> bool:
        return self.mismatches == 0 and not self.is_rounded_elsewhere


def expectations(twin: Twin, call: Call) -> list[Expectation]:
    """Run the reference, in the call's dtypes and as the oracle."""
    function = load_function(twin.reference)
    with np.errstate(all="ignore"):
        in_dtype = as_tuple(function(*call.arrays.values(), **call.constants))
        exactly = as_tuple(oracle(function, *call.arrays.values(), **call.constants))
    expected = []
    for output, own, exact in zip(twin.outputs, in_dtype, exactly, strict=True):
        if output.exact:
            expected.append(Expectation(output.name, own, None, 0.0, own))
            continue
        own_error = float(np.max(ulp_errors(own, exact, output.row_share), initial=0.0)) if own.size else 0.0
        bound = 2 * max(own_error, 0.5) + output.floor_of(own.dtype)
        expected.append(Expectation(output.name, None, exact, bound, own, output.row_share))
    return expected


def judge(expected: Expectation, actual: Array) -> Judgement:
    """One output against what it must be."""
    if actual.shape != expected.like.shape or actual.dtype != expected.like.dtype:
        raise ValueError(
            f"{expected.name} is {actual.dtype}{list(actual.shape)}; it must be "
            f"{expected.like.dtype}{list(expected.like.shape)}"
        )
    differing = 0
    if expected.exact is not None:
        bits = np.dtype(f"u{actual.dtype.itemsize}")
        differs = np.ascontiguousarray(actual).view(bits) != np.ascontiguousarray(expected.exact).view(bits)
        errors = np.where(differs, np.inf, 0.0)
    else:
        assert expected.oracle is not None
        oracle_of_output, share = expected.oracle, expected.row_share
        errors = ulp_errors(actual, oracle_of_output, share) if actual.size else np.zeros(actual.shape)
        if actual.dtype.itemsize <= 2:
            same = (actual == expected.like) | (np.isnan(actual) & np.isnan(expected.like))
            differing = int(np.count_nonzero(~same))
    mismatches = int((errors > expected.bound).sum())
    place = np.unravel_index(int(np.argmax(errors)), errors.shape) if errors.size else ()
    return Judgement(
        expected.name,
        float(np.max(errors, initial=0.0)),
        expected.bound,
        mismatches,
        tuple(int(index) for index in place),
        errors,
        str(actual.dtype),
        differing,
    )


def worst_of(judgements: Sequence[Judgement]) -> Judgement:
    """The one that fails, or comes nearest to it."""
    return max(judgements, key=lambda one: (not one.ok, one.max_ulp / max(one.bound, 1e-9)))

"""Is what an executor gave what the reference says?

Exact outputs: every bit, or any NaN for NaN that is computed. Where rounding decides what an exact output is (a draw
between two tokens that nearly tie), the case file lists what is as right as the reference's own (`Twin.also_right`);
such elements pass, and are counted.

Continuous outputs: error in ULPs against the float64 oracle, held row by row (the last axis) to 2 x max(e, 0.5) plus
the output's floor, where e is the error of the reference itself in its own dtype under NumPy: the optimized panel may
add up in another order. A row in which those errors happen to cancel is held to the error of the median row; one that
errs more than all others widens the bound of no other.

That bound lets a value pass that is truncated, or rounded once too often or too seldom: none of them errs by more than
an ULP or two. So outputs of 16 bits or fewer are held to more:

- What is rounded once, from float32 to the output's dtype: the float32 result may err by the bound above, in ULPs of
  float32, and the rounding by half an ULP of the output. An output is rounded once if the reference in float32, then
  rounded, gives what the reference gives.
- All of them, unless terms are rounded on the way (`Output.rounds_terms`): few elements may differ from the
  reference's own result, at all, in a row, and at any place along an axis (a channel, a head). Another order of float32
  sums changes one element in hundreds; another place of rounding changes a quarter of them, and one in 20 may differ.
  Elements count that can tell: 0 and NaN are not rounded, and neither is what an operation leaves as it was.

Sums of many terms may be wrong by a share of their terms' magnitude besides (`Output.of_magnitude`).

Rows of an overwritten input that the reference leaves as they were must be left so, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from engine.names import load_function
from parity.twin import Call, Output, Twin, as_tuple
from parity.ulp import ROW_SHARE, in_precision, magnitude, oracle, spacing, ulp_errors
from reference.formats import Array

DIFFERING_SHARE = 20  # one element in so many of a narrow output may differ from the reference's own,
FEW_DIFFERING = 2  # and so many of a small one


@dataclass(frozen=True)
class Expectation:
    """What one output of a call must be."""

    name: str
    exact: Array | None  # the very bits
    oracle: Array | None  # f64
    bound: Array  # ULPs, of every element, or of as many as broadcast to them; 0 for exact outputs
    like: Array  # the reference's own result: shape and dtype
    row_share: float = ROW_SHARE  # see `Output`
    before: Array | None = None  # the input that it overwrites
    any_nan: bool = False  # see `Output`
    rounds_terms: bool = False  # see `Output`
    also_right: Array | None = None  # [..., n]: see `Twin`


@dataclass(frozen=True)
class Judgement:
    """Of one output, or of the worst of several."""

    output: str
    max_ulp: float  # of the element nearest to its bound; infinite where NaN met a number, or an exact output differs
    bound: float  # of that element
    mismatches: int  # elements beyond their bound
    worst: tuple[int, ...]  # where that element is
    errors: Array  # ULPs of every element, f64
    is_beyond: Array  # bool: their own bounds
    dtype: str  # of the output
    differing: int = 0  # elements of a narrow output, or of one that rounding decides, that are not the reference's own
    rounded_elsewhere: str = ""  # the part where more differ than another order of sums explains, in words

    @property
    def ok(self) -> bool:
        return self.mismatches == 0 and not self.rounded_elsewhere


def expectations(twin: Twin, call: Call) -> list[Expectation]:
    """Run the reference, in the call's dtypes and as the oracle.

    Errors: ValueError where the reference itself errs so much that it says nothing.
    """
    function = load_function(twin.reference)
    arrays = tuple(call.arrays.values())
    results = in_dtype(twin, call)
    exactly = unrounded = results
    with np.errstate(all="ignore"):
        if not all(output.exact for output in twin.outputs):
            exactly = as_tuple(oracle(function, *arrays, **call.constants))
        if any(not output.exact and _is_narrow(own) for output, own in zip(twin.outputs, results, strict=True)):
            unrounded = as_tuple(in_precision(np.float32, function, *arrays, **call.constants))
    magnitudes = twin.magnitudes(call) if twin.magnitudes is not None else [None] * len(twin.outputs)
    others = _also_right(twin, call)
    of_outputs = zip(twin.outputs, results, exactly, unrounded, magnitudes, others, strict=True)
    expected = []
    for output, own, exact, wide, terms, other in of_outputs:
        before = None if output.in_place is None else call.arrays[output.in_place]
        if output.exact:
            bound = np.zeros(())
            expected.append(Expectation(output.name, own, None, bound, own, any_nan=output.any_nan, also_right=other))
            continue
        bound = _bound(output, own, exact, wide) + _share_of(terms, output, own, exact)
        expected.append(
            Expectation(
                output.name, None, exact, bound, own, output.row_share, before, rounds_terms=output.rounds_terms
            )
        )
    return expected


def _also_right(twin: Twin, call: Call) -> Sequence[Array | None]:
    if twin.also_right is None:
        return [None] * len(twin.outputs)
    with np.errstate(all="ignore"):
        return twin.also_right(call)


def in_dtype(twin: Twin, call: Call) -> tuple[Array, ...]:
    """What the reference gives, in the call's dtypes."""
    with np.errstate(all="ignore"):
        return as_tuple(load_function(twin.reference)(*call.arrays.values(), **call.constants))


def _is_narrow(array: Array) -> bool:
    return array.dtype.itemsize <= 2


def _bound(output: Output, own: Array, exact: Array, unrounded: Array) -> Array:
    """ULPs of own's dtype that each element may err by."""
    if not own.size:
        return np.asarray(1.0 + output.floor_of(own.dtype))
    with np.errstate(all="ignore"):
        is_rounded_once = _is_narrow(own) and bool(_agree(unrounded.astype(own.dtype), own).all())
    if not is_rounded_once:
        return _bound_of_rows(output, own, exact)
    finite = np.where(np.isfinite(exact), exact, 0.0)
    half = spacing(finite, own.dtype) / 2
    at_most = _bound_of_rows(output, unrounded, exact) * _ulp(exact, unrounded, output.row_share)
    return (half + at_most) / _ulp(exact, own, output.row_share)


def _share_of(terms: Array | None, output: Output, own: Array, exact: Array) -> Array:
    """ULPs of own's dtype that each element may err by for the magnitude of its terms; 0 where that is not finite."""
    if terms is None or not own.size:
        return np.zeros(())
    with np.errstate(all="ignore"):
        share = output.of_magnitude_of(own.dtype) * 2.0**-23 * np.where(np.isfinite(terms), terms, 0.0)
        return share / _ulp(exact, own, output.row_share)


def _ulp(exact: Array, like: Array, row_share: float) -> Array:
    return spacing(magnitude(exact, like.dtype, row_share), like.dtype)


def _bound_of_rows(output: Output, own: Array, exact: Array) -> Array:  # [..., 1]
    errors = ulp_errors(own, exact, output.row_share)
    rows = np.max(errors, axis=-1, keepdims=True)
    # So many ULPs are half of a number itself: twice that, and zeros would pass.
    if rows.max() >= 2.0 ** (ml_dtypes.finfo(own.dtype).nmant - 1):
        place = [int(index) for index in np.unravel_index(int(np.argmax(errors)), errors.shape)]
        raise ValueError(
            f"the reference of {output.name} errs by {rows.max():.3g} ULP at {place}: it cannot say what is right"
        )
    can_err = (np.isfinite(exact) & (exact != 0)).any(axis=-1, keepdims=True)
    median = float(np.median(rows[can_err])) if can_err.any() else 0.0
    return 2 * np.maximum(rows, max(median, 0.5)) + output.floor_of(own.dtype)


def judge(expected: Expectation, actual: Array) -> Judgement:
    """One output against what it must be."""
    if actual.shape != expected.like.shape or actual.dtype != expected.like.dtype:
        raise ValueError(
            f"{expected.name} is {actual.dtype}{list(actual.shape)}; it must be "
            f"{expected.like.dtype}{list(expected.like.shape)}"
        )
    differing, elsewhere = 0, ""
    if expected.exact is not None:
        same = _bits(actual) == _bits(expected.exact)
        if expected.any_nan:
            same |= np.isnan(actual) & np.isnan(expected.exact)
        if expected.also_right is not None:
            is_right = same | (actual[..., None] == expected.also_right).any(axis=-1)
            differing, same = int(np.count_nonzero(is_right & ~same)), is_right
        errors = np.where(same, 0.0, np.inf)
    elif not actual.size:
        errors = np.zeros(actual.shape)
    else:
        assert expected.oracle is not None
        errors = ulp_errors(actual, expected.oracle, expected.row_share)
        can_tell = np.isfinite(expected.like) & (expected.like != 0)
        if expected.before is not None:
            stays = _bits(expected.like) == _bits(expected.before)
            left = (_bits(actual) == _bits(expected.before)) | (np.isnan(actual) & np.isnan(expected.before))
            errors = np.where(stays.all(axis=-1, keepdims=True) & ~left, np.inf, errors)
            can_tell &= ~stays
        if _is_narrow(actual) and not expected.rounds_terms:
            differs = ~_agree(actual, expected.like) & can_tell
            differing = int(np.count_nonzero(differs))
            elsewhere = _differing_part(expected.name, differs, can_tell) if differing > FEW_DIFFERING else ""
            if elsewhere:  # a result that was asked for several times tells once
                first = np.zeros(can_tell.size, np.bool_)
                first[np.unique(expected.oracle, return_index=True)[1]] = True
                can_tell &= first.reshape(can_tell.shape)
                elsewhere = _differing_part(expected.name, differs & can_tell, can_tell)
    bound = np.broadcast_to(expected.bound, errors.shape)
    is_beyond = errors > bound
    worst: tuple[int, ...] = ()
    if errors.size:
        nearest = np.unravel_index(int(np.argmax(errors / np.maximum(bound, 1e-9))), errors.shape)
        worst = tuple(int(index) for index in nearest)
    return Judgement(
        expected.name,
        float(errors[worst]) if errors.size else 0.0,
        float(bound[worst]) if errors.size else float(np.max(expected.bound)),
        int(np.count_nonzero(is_beyond)),
        worst,
        errors,
        is_beyond,
        str(actual.dtype),
        differing,
        elsewhere,
    )


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _agree(one: Array, other: Array) -> Array:
    return (one == other) | (np.isnan(one) & np.isnan(other))


def _differing_part(name: str, differs: Array, can_tell: Array) -> str:
    """The part in which more elements differ than may: all, or else a smaller one. Nothing if there is none."""
    for axes in _parts(differs.ndim):
        others = tuple(axis for axis in range(differs.ndim) if axis not in axes)
        counts, totals = (mask.sum(axis=others, keepdims=True) for mask in (differs, can_tell))
        shares = np.where(counts > np.maximum(FEW_DIFFERING, totals // DIFFERING_SHARE), counts / (totals + 1e-9), 0.0)
        place = tuple(int(index) for index in np.unravel_index(int(np.argmax(shares)), shares.shape))
        if shares[place] > 0:
            where = ", ".join(str(place[axis]) if axis in axes else ":" for axis in range(differs.ndim))
            return f"{counts[place]} of {totals[place]} elements of {name}[{where}]"
    return ""


def _parts(ndim: int) -> Iterator[tuple[int, ...]]:
    """Axes along which an array is cut into parts: none, each, and all but the last."""
    yield ()
    yield from ((axis,) for axis in range(ndim))
    if ndim > 2:
        yield tuple(range(ndim - 1))


def worst_of(judgements: Sequence[Judgement]) -> Judgement:
    """The one that fails, or comes nearest to it."""
    return max(judgements, key=lambda one: (not one.ok, one.max_ulp / max(one.bound, 1e-9)))

"""How far the simulator is from the chip where PTX leaves the last bits open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.simulators.gpu.vectors.formats import FORMATS
from tests.simulators.gpu.vectors.inputs import inputs_of
from tests.simulators.gpu.vectors.probe import Probe


@dataclass(frozen=True)
class Distance:
    """Over all elements of a probe that it judges."""

    worst: float  # of its tolerance: above 1 is too far
    worst_ulps: float  # units in the last place of the chip's finite answers
    differing: int  # elements whose bits differ
    count: int


def distance(probe: Probe, chip: NDArray, simulator: NDArray) -> Distance:
    """chip, simulator: bits of one output.

    Both sides may be off by the bound, so the tolerance is twice that, and never less than one denormal unit. Where the
    chip's answer is not finite the bits must agree. Operands beyond `within` are not judged.
    """
    accuracy = probe.accuracy
    assert accuracy is not None
    form = FORMATS[result_format(probe)]
    a, b = (_elements(bits, form.bits) for bits in (chip, simulator))
    differing = a != b
    with np.errstate(all="ignore"):
        x, y = form.decode(a), form.decode(b)
        least = 2.0 ** (1 - form.bias - form.mantissa)
        tolerance = 2 * np.maximum(np.maximum(accuracy.relative * np.abs(x), accuracy.absolute), least)
        off = np.where(differing, np.abs(x - y) / tolerance, 0.0)
        exponent = np.maximum(np.frexp(x)[1] - 1, 1 - form.bias)
        ulps = np.where(differing, np.abs(x - y) / 2.0 ** (exponent.astype(np.float64) - form.mantissa), 0.0)
    off = np.where(np.isnan(off) | (differing & ~np.isfinite(x)), np.inf, off)
    judged = np.ones(len(a), np.bool_)
    if np.isfinite(accuracy.within):
        operand = inputs_of(probe.inputs, probe.count)[0]
        judged = ~(np.abs(FORMATS[probe.inputs[0]].decode(operand)) > accuracy.within)
    finite = np.where(np.isfinite(ulps), ulps, 0.0)
    return Distance(
        float(off[judged].max(initial=0.0)), float(finite[judged].max(initial=0.0)), int(differing.sum()), len(a)
    )


def result_format(probe: Probe) -> str:
    """Of an approximate probe: the type its name ends with."""
    return probe.name.rsplit(".", 1)[1].removesuffix("x2")


def _elements(bits: NDArray, width: int) -> NDArray:
    """Packed elements, one after another."""
    return bits.reshape(-1).view(np.dtype(f"u{width // 8}"))

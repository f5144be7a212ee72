"""The simulator's answers to the cases beside the chip's, and how far apart they may be.

`python -m tests.parity.executors.simulate.recorded.comparison` says how far they are, by twin and dtype.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optimized.compile.arch import SM_90A
from optimized.compile.library import library
from parity.cases import twin_named
from parity.executors.poisoned import POISONS
from parity.executors.simulate.executor import SimulateExecutor
from parity.harness import seed_of
from parity.judge import expectations
from parity.twin import Config, Output
from parity.ulp import ulp_errors
from reference.formats import Array
from tests.parity.executors.simulate.recorded.store import Case, bits_before, bits_of, hash_of, hash_of_inputs, load

H200_ANSWERS = Path(__file__).parent / "h200.npz"


class InputsDrifted(Exception):
    """A case's inputs, or its exact answers, are not those that they were: record anew, or find what changed them."""


@dataclass(frozen=True)
class Bound:
    """How far outputs may be from the chip's."""

    ulps: float  # as parity counts them
    share: float  # of the elements: those that may differ at all


EXACT = Bound(0.0, 0.0)
# By twin and dtype. These kernels have instructions whose last bits PTX leaves open: rsqrt.approx (norms of heads) and
# ex2.approx (the router). The H200's answers differ from the simulator's in 13 % of float32 norms of heads by up to 4
# ULP, and in 21 % of the router's weights by up to 4. All else is equal, bit for bit: other kernels have no such
# instruction, or their results of 16 bits do not tell.
BOUNDS: Mapping[str, Mapping[str, Bound]] = {
    "qk_norm": {"float32": Bound(4.5, 0.2)},
    "qk_norm_rope_kv_write": {"float32": Bound(4.5, 0.2)},
    "router_top_k": {"float32": Bound(4.5, 0.3)},
}


@dataclass(frozen=True)
class Difference:
    """Of one output of a case."""

    twin: str
    config: Config
    output: str
    dtype: str
    count: int  # elements
    differing: int
    ulps: float  # of the element that is furthest
    first: str  # in words


def differences(executor: SimulateExecutor, case: Case) -> list[Difference]:
    """One an output, those that agree too. Errors: InputsDrifted; those of the simulator."""
    twin = twin_named(case.twin)
    call = twin.inputs(case.config, np.random.default_rng(seed_of(case.config)))
    what = f"{case.twin} {dict(case.config)}"
    if hash_of_inputs(call) != case.inputs:
        raise InputsDrifted(what)
    expected = expectations(twin, call)
    results = executor.run_once(twin, call, expected, POISONS[0])
    found = []
    for output, answer, result, one in zip(twin.outputs, case.answers, results, expected, strict=True):
        if answer.changed is not None:
            chip = (answer.changed ^ bits_before(output, call, result)).view(result.dtype)
        elif hash_of(one.like) == answer.hash:  # the chip gave the reference's own bits
            chip = np.ascontiguousarray(one.like)
        else:
            raise InputsDrifted(f"{what}: the reference's {answer.name} is another than it was")
        count, ulps, first = _compared(output, chip, result)
        dtype = str(result.dtype)
        found.append(Difference(case.twin, case.config, output.name, dtype, chip.size, count, ulps, first))
    return found


def _compared(output: Output, chip: Array, simulator: Array) -> tuple[int, float, str]:
    """How many elements differ, how far the furthest is, and the first of them."""
    chip_bits, bits = bits_of(chip), bits_of(simulator)
    differing = np.argwhere(chip_bits != bits)
    if not len(differing):
        return 0, 0.0, ""
    place = tuple(int(index) for index in differing[0])
    first = f"{list(place)}: chip {int(chip_bits[place]):#x}, simulator {int(bits[place]):#x}"
    if output.exact:
        return len(differing), np.inf, first
    return len(differing), float(ulp_errors(simulator, chip.astype(np.float64), output.row_share).max()), first


def by_dtype(found: Sequence[Difference]) -> dict[tuple[str, str], list[Difference]]:
    """By twin and dtype."""
    groups = defaultdict(list)
    for one in found:
        groups[one.twin, one.dtype].append(one)
    return groups


def too_far(found: Sequence[Difference]) -> list[str]:
    """What goes beyond its bound, in words."""
    complaints = []
    for (twin, dtype), group in by_dtype(found).items():
        bound = BOUNDS.get(twin, {}).get(dtype, EXACT)
        complaints += [
            f"{one.output} of {dict(one.config)}: {one.ulps:.3g} ULP; {one.first}"
            for one in group
            if one.ulps > bound.ulps
        ]
        differing, count = sum(one.differing for one in group), sum(one.count for one in group)
        if differing > bound.share * count:
            first = next(f"{one.output} of {dict(one.config)} {one.first}" for one in group if one.differing)
            complaints.append(f"{differing} of {count} elements of {dtype} differ, {bound.share:.1%} may: {first}")
    return complaints


def main() -> int:
    executor = SimulateExecutor(SM_90A, library())
    found = [one for case in load(H200_ANSWERS).cases for one in differences(executor, case)]
    for (twin, dtype), group in sorted(by_dtype(found).items()):
        differing, count = sum(one.differing for one in group), sum(one.count for one in group)
        print(
            f"{twin} {dtype}: {differing} of {count} elements differ, by up to {max(one.ulps for one in group):.2g} ULP"
        )
    for complaint in too_far(found):
        print(f"TOO FAR {complaint}")
    return int(bool(too_far(found)))


if __name__ == "__main__":
    sys.exit(main())

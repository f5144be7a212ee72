"""The simulator answers the probes as an H200 did: bit for bit, or within the documented bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simulators.gpu.errors import SimulatorError
from tests.simulators.gpu.vectors.accuracy import Distance, distance
from tests.simulators.gpu.vectors.inputs import inputs_of
from tests.simulators.gpu.vectors.probe import Probe
from tests.simulators.gpu.vectors.probes import FAMILIES, PROBES
from tests.simulators.gpu.vectors.simulated import elementwise_answers, launched_answers
from tests.simulators.gpu.vectors.store import Recording, kept, load

H200_ANSWERS = Path(__file__).parent / "h200.npz"
ELEMENTWISE = [family for family, probes in FAMILIES.items() if any(probe.is_elementwise for probe in probes)]
COLLECTIVE = [family for family in FAMILIES if family not in ELEMENTWISE]
# Probes that the simulator refuses by name, and why.
REFUSED: dict[str, str] = {}


@cache
def recording() -> Recording:
    return load(H200_ANSWERS)


def test_the_chip_answered_every_probe() -> None:
    assert recording().facts["device"] == "NVIDIA H200"
    assert set(recording().answers) == set(PROBES)


def test_the_answers_are_small() -> None:
    assert H200_ANSWERS.stat().st_size < 3_000_000


def test_entries_are_unique() -> None:
    assert len({probe.entry for probe in PROBES.values()}) == len(PROBES)


@pytest.mark.parametrize("family", ELEMENTWISE)
def test_instructions_answer_as_the_chip_did(family: str) -> None:
    assert _wrong(family, elementwise_answers) == {}


@pytest.mark.parametrize("family", COLLECTIVE)
def test_launches_answer_as_the_chip_did(family: str) -> None:
    assert _wrong(family, launched_answers) == {}


def test_a_flipped_bit_is_seen() -> None:
    for name in ("add.rn.f32", "ex2.approx.f32"):
        probe, chip = PROBES[name], recording().answers[name]
        flipped = [chip[0] ^ np.where(np.arange(len(chip[0])) == 600, np.uint32(1 << 22), np.uint32(0))]
        assert _complaint(probe, chip, chip) is None
        assert _complaint(probe, chip, flipped) is not None


def _wrong(family: str, answer: Callable[[Probe], Sequence[NDArray]]) -> dict[str, str]:
    """What is wrong, by probe."""
    wrong = {}
    for probe in FAMILIES[family]:
        try:
            answers = [kept(one) for one in answer(probe)]
        except SimulatorError as error:
            complaint: str | None = None if probe.name in REFUSED else str(error)
        else:
            complaint = _complaint(probe, recording().answers[probe.name], answers)
        if complaint is not None:
            wrong[probe.name] = complaint
    return wrong


def _complaint(probe: Probe, chip: Sequence[NDArray], simulator: Sequence[NDArray]) -> str | None:
    if probe.accuracy is not None:
        worst = max(distances(probe, chip, simulator), key=lambda one: one.worst)
        return None if worst.worst <= 1 else str(worst)
    for number, (one, other) in enumerate(zip(chip, simulator, strict=True)):
        differing = np.nonzero(one != other)[0]
        if len(differing):
            return _first(probe, number, one, other, differing)
    return None


def distances(probe: Probe, chip: Sequence[NDArray], simulator: Sequence[NDArray]) -> list[Distance]:
    """Of each output of an approximate probe."""
    return [distance(probe, *arrays) for arrays in zip(chip, simulator, strict=True)]


def _first(probe: Probe, number: int, chip: NDArray, simulator: NDArray, differing: NDArray) -> str:
    at = int(differing[0])
    text = f"output {number}: {len(differing)} of {len(chip)} differ"
    if len(chip) != probe.count:
        return f"{text}, the first at {at} of what is kept: chip {int(chip[at]):#x}, simulator {int(simulator[at]):#x}"
    operands = ", ".join(f"{int(array[at]):#x}" for array in inputs_of(probe.inputs, probe.count))
    return f"{text}, first element {at} of ({operands}): chip {int(chip[at]):#x}, simulator {int(simulator[at]):#x}"

"""Runs the cases on the GPU of this machine: `python3 -m tests.parity.executors.simulate.recorded.record OUT.npz`.

Nothing is kept of a chip that errs: each case is run twice, in memory with different poison, and both results must be
the same and hold to the reference.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parity.cases import twin_named
from parity.executors.device import DeviceExecutor
from parity.executors.poisoned import PoisonedExecutor
from parity.harness import seed_of
from parity.judge import expectations, judge
from parity.twin import Config
from tests.parity.executors.simulate.recorded.cases import all_cases
from tests.parity.executors.simulate.recorded.store import Case, Recording, answer, hash_of, hash_of_inputs, save


class WrongAnswer(Exception):
    """A chip's, which is not worth keeping."""


def main(arguments: Sequence[str]) -> int:
    import torch

    (path,) = map(Path, arguments)
    executor = DeviceExecutor()
    facts = {"chip": str(executor.chip), "cuda": str(torch.version.cuda), "date": time.strftime("%Y-%m-%d")}
    cases, failures = record(executor)
    save(path, Recording(facts, cases))
    print(f"{facts}: {len(cases)} cases, {path.stat().st_size} bytes")
    for failure in failures:
        print(f"FAILED {failure}")
    return int(bool(failures))


def record(executor: PoisonedExecutor) -> tuple[list[Case], list[str]]:
    """What came of all cases, and why there is none of some."""
    begin = time.monotonic()
    cases, failures = [], []
    for number, (twin, config) in enumerate(all_cases()):
        try:
            cases.append(recorded(executor, twin, config))
        except Exception as error:
            failures.append(f"{twin} {dict(config)}: {type(error).__name__}: {error}")
        if number % 20 == 0:
            print(f"{number} cases, {time.monotonic() - begin:.0f} s: {twin}", flush=True)
    return cases, failures


def recorded(executor: PoisonedExecutor, name: str, config: Config) -> Case:
    """Errors: WrongAnswer; Fault; whatever the operation raises."""
    twin = twin_named(name)
    call = twin.inputs(config, np.random.default_rng(seed_of(config)))
    inputs = hash_of_inputs(call)
    expected = expectations(twin, call)
    first, second = executor.run(twin, call, expected).results
    for one, other, what in zip(first, second, expected, strict=True):
        if not judge(what, one).ok or hash_of(one) != hash_of(other):
            raise WrongAnswer(f"{name} {dict(config)}: {what.name} is wrong, or is not the same twice")
    answers = [answer(output, call, one) for output, one in zip(twin.outputs, first, strict=True)]
    return Case(name, dict(config), inputs, answers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

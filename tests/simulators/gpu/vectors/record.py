"""Asks the GPU of this machine all probes: `python3 -m tests.simulators.gpu.vectors.record OUT.npz [NAME ...]`.

Names (or beginnings of them) choose probes. Needs NumPy and a CUDA driver. Probes run in processes of their own, so one
that faults or hangs takes no other with it: its group is halved until it stands alone.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.simulators.gpu.vectors.driver import Driver, DriverError
from tests.simulators.gpu.vectors.inputs import dtype_of, inputs_of, memory_of
from tests.simulators.gpu.vectors.probe import OUTPUT_BITS, Probe, module_text
from tests.simulators.gpu.vectors.probes import FAMILIES, PROBES
from tests.simulators.gpu.vectors.store import Recording, kept, save

GROUP = 128  # probes of a process
IN_MODULE = 32
TIMEOUT = 120.0  # seconds of a group


@dataclass
class Outcome:
    """What came of asking some probes."""

    answers: dict[str, list[NDArray]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # why a probe has no answer
    facts: dict[str, str] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        self.answers |= other.answers
        self.failures |= other.failures
        self.facts |= other.facts


def main(arguments: Sequence[str]) -> int:
    path, chosen = Path(arguments[0]), tuple(arguments[1:])
    begin = time.monotonic()
    total = Outcome()
    for family, probes in FAMILIES.items():
        names = [probe.name for probe in probes if not chosen or probe.name.startswith(chosen)]
        for start in range(0, len(names), GROUP):
            total.add(_record(names[start : start + GROUP]))
        done = sum(name in total.answers for name in names)
        print(f"{family}: {done} of {len(names)} recorded, {time.monotonic() - begin:.0f} s", flush=True)
    if total.answers:
        save(path, Recording(total.facts, total.answers))
        print(f"{total.facts}: {len(total.answers)} probes, {path.stat().st_size} bytes")
    for name, why in total.failures.items():
        print(f"FAILED {name}: {why}")
    return 1 if total.failures else 0


def _record(names: list[str]) -> Outcome:
    outcome = _in_process(names)
    if isinstance(outcome, Outcome):
        return outcome
    if len(names) == 1:
        return Outcome(failures={names[0]: outcome})
    half = len(names) // 2
    both = _record(names[:half])
    both.add(_record(names[half:]))
    return both


def _in_process(names: list[str]) -> Outcome | str:
    """What `_ask` sends; or why the process brought nothing."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_ask, args=(names, send))
    process.start()
    send.close()
    try:
        return receive.recv() if receive.poll(TIMEOUT) else f"no answer within {TIMEOUT:.0f} s"
    except EOFError:
        return "the process ended without an answer"
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _ask(names: list[str], send: Connection) -> None:
    """Sends an Outcome, or the text of a fault."""
    outcome = Outcome()
    try:
        driver = Driver()
        outcome.facts = {"device": driver.name(), "driver": str(driver.version())}
        for start in range(0, len(names), IN_MODULE):
            _ask_module(driver, [PROBES[name] for name in names[start : start + IN_MODULE]], outcome)
    except DriverError as error:
        send.send(str(error))
    else:
        send.send(outcome)
    send.close()


def _ask_module(driver: Driver, probes: list[Probe], outcome: Outcome) -> None:
    """Probes in one module; if it does not assemble, each in one of its own."""
    try:
        module = driver.load(module_text(probes))
    except DriverError as error:
        if len(probes) == 1:
            outcome.failures[probes[0].name] = str(error)
            return
        for probe in probes:
            _ask_module(driver, [probe], outcome)
        return
    for probe in probes:
        first, again = (run(driver, module, probe) for _ in range(2))
        if all(np.array_equal(one, other) for one, other in zip(first, again, strict=True)):
            outcome.answers[probe.name] = [kept(answer) for answer in first]
        else:
            outcome.failures[probe.name] = "two runs differ"
    driver.unload(module)


def run(driver: Driver, module: c_void_p, probe: Probe) -> list[NDArray]:
    """Outputs and memories after one launch."""
    outputs = [np.zeros(probe.count, dtype_of(OUTPUT_BITS[output])) for output in probe.outputs]
    memories = [memory_of(memory, position, probe.count) for position, memory in enumerate(probe.memories)]
    inputs = inputs_of(probe.inputs, probe.count)
    addresses = [driver.upload(array) for array in (*inputs, *outputs, *memories)]
    driver.launch(module, probe.entry, probe.count // probe.block, probe.block, addresses)
    written = zip(addresses[len(inputs) :], (*outputs, *memories), strict=True)
    answers = [driver.download(address, like) for address, like in written]
    driver.release()
    return answers


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

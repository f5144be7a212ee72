"""Cases tried in other processes, several at once. A process that dies takes one case with it, not the run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

from optimized.compile.arch import Arch, arch_named
from parity import cases
from parity.harness import record_of, try_case
from parity.record import Record
from parity.twin import Config


@dataclass
class Place:
    """Where a case was to be tried."""

    name: str
    arch: Arch
    chip: str | None = None


@dataclass(frozen=True)
class Case:
    """One configuration of a twin, with one executor for one architecture."""

    twin: str
    executor: str
    arch: str
    config: Config


def compile_case(case: Case) -> Record:
    """Try it in this process."""
    from parity.executors.compile_only import CompileExecutor

    return try_case(cases.twin_named(case.twin), case.config, CompileExecutor(arch_named(case.arch)))


def compile_cases(tried: Sequence[Case], jobs: int) -> Iterator[Record]:
    """The record of each case, as they become ready."""
    return each_case(compile_case, tried, jobs, lambda case: died(case, "the process that compiled it died"))


Result = TypeVar("Result")


def each_case(
    function: Callable[[Case], Result], tried: Sequence[Case], jobs: int, of_dead: Callable[[Case], Result]
) -> Iterator[Result]:
    """What the function gives for each case, as they become ready. This process itself runs none: it must outlive them.
    of_dead: says what the result is of a case whose process died."""
    left = []
    pool = _pool(jobs)
    try:
        waiting = {pool.submit(function, case): case for case in tried}
        for future in as_completed(waiting):
            case = waiting.pop(future)
            try:
                result = future.result()
            except BrokenProcessPool:
                left.append(case)
            else:
                yield result
    finally:
        pool.shutdown(cancel_futures=True)
    yield from _one_by_one(function, left, of_dead)


def _one_by_one(
    function: Callable[[Case], Result], left: Sequence[Case], of_dead: Callable[[Case], Result]
) -> Iterator[Result]:
    """After a process died: one at a time, so that the one which kills it is known."""
    pool = None
    for case in left:
        pool = pool or _pool(1)
        try:
            result = pool.submit(function, case).result()
        except BrokenProcessPool:
            pool = None
            result = of_dead(case)
        yield result
    if pool is not None:
        pool.shutdown()


def died(case: Case, reason: str) -> Record:
    place = Place(case.executor, arch_named(case.arch))
    return record_of(cases.twin_named(case.twin), case.config, place, "fail", reason=reason)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_leave_interrupts_to_the_parent)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

"""Cases compiled in several processes at once. A process that dies takes one case with it, not the run."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

from optimized.compile.arch import arch_named
from parity import cases
from parity.harness import seed_of, try_case
from parity.record import Record
from parity.twin import Config


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
    """The record of each case, as they become ready. One job is this process itself."""
    if jobs == 1:
        yield from map(compile_case, tried)
        return
    left = []
    pool = _pool(jobs)
    try:
        waiting = {pool.submit(compile_case, case): case for case in tried}
        for future in as_completed(waiting):
            case = waiting.pop(future)
            try:
                record = future.result()
            except BrokenProcessPool:
                left.append(case)
            else:
                yield record
    finally:
        pool.shutdown(cancel_futures=True)
    yield from _one_by_one(left)


def _one_by_one(left: Sequence[Case]) -> Iterator[Record]:
    """After a process died: one at a time, so that the one which kills it is known."""
    pool = None
    for case in left:
        pool = pool or _pool(1)
        try:
            record = pool.submit(compile_case, case).result()
        except BrokenProcessPool:
            pool = None
            reason = "the process that compiled it died"
            seed = seed_of(case.config)
            record = Record(case.twin, case.executor, case.arch, None, dict(case.config), seed, "fail", reason=reason)
        yield record
    if pool is not None:
        pool.shutdown()


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_leave_interrupts_to_the_parent)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

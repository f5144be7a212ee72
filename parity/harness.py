"""Trying the cases of a twin with an executor."""

from __future__ import annotations

import json
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis.internal.conjecture import providers

from optimized.compile.arch import Arch
from optimized.compile.key import source_hash
from parity.executors.executor import Executor, Expected, Fault, Outcome, Skip
from parity.judge import Judgement, expectations, judge, worst_of
from parity.record import Record, Status
from parity.twin import Call, Config, Twin, elements

# Elements of all arrays of a call: if there are more, both calls have the same inputs, and the reference runs once.
MOST_OF_TWO_CALLS = 1 << 22


def configurations(twin: Twin, searched: int, seed: int = 0) -> Iterator[Config]:
    """The corners, then `searched` more of the space: the same ones for the same seed."""
    seen = set()
    for config in (*twin.corners(), *_searched(twin, searched, seed)):
        name = json.dumps(config, sort_keys=True)
        if name not in seen:
            seen.add(name)
            yield config


def _searched(twin: Twin, count: int, seed: int) -> list[Config]:
    found: list[Config] = []
    if count == 0:
        return found

    @with_seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(twin.space)
    def collect(config: Config) -> None:
        found.append(config)

    with _no_constants_of_modules():
        collect()
    return found


def _no_constants_of_modules() -> ExitStack:
    """Inside, what Hypothesis draws does not depend on which modules are imported.

    Since version 6.131 it draws now and then a number that the source of a local module holds. There is no setting for
    that; where its internals have other names, a test says that the search no longer repeats itself.
    """
    stack = ExitStack()
    if hasattr(providers, "_get_local_constants"):
        nothing = providers.Constants()
        stack.enter_context(patch.object(providers, "_get_local_constants", lambda: nothing))
        stack.enter_context(patch.object(providers, "CONSTANTS_CACHE", type(providers.CONSTANTS_CACHE)(1024)))
    return stack


def seed_of(config: Config) -> int:
    """So that a case is the same wherever and whenever it is tried."""
    return zlib.crc32(json.dumps(config, sort_keys=True).encode())


def call_of(twin: Twin, config: Config, number: int = 0) -> Call:
    """A case's first call (0), or its second, of the same sizes and with other values."""
    return twin.call(config, np.random.default_rng(seed_of(config) + number))


class Place(Protocol):
    """Where cases are tried, for their records."""

    name: str
    arch: Arch
    chip: str | None


@cache
def _source() -> str:
    """The optimized panel's, when this process first made a record: all its files are read, and records are many."""
    return source_hash()


def record_of(twin: Twin, config: Config, place: Place, status: Status, **values: Any) -> Record:
    return Record(
        twin.name,
        place.name,
        place.arch.name,
        place.chip,
        dict(config),
        seed_of(config),
        status,
        source=_source(),
        **values,
    )


def try_case(
    twin: Twin,
    config: Config,
    executor: Executor,
    watch: Callable[[Call, list[Judgement]], None] = lambda *_: None,
) -> Record:
    """One case. Whatever goes wrong is in the record, and not raised. watch: is shown what was judged."""
    start = time.perf_counter()
    reason = twin.untried(config, executor.name)
    if reason is not None:
        return record_of(twin, config, executor, "skipped", reason=reason)
    try:
        first = call, expected = _expected(twin, call_of(twin, config), executor)
        second = first
        if executor.computes and elements(call) <= MOST_OF_TWO_CALLS:
            second = _expected(twin, call_of(twin, config, number=1), executor)
        outcome = executor.run(twin, call, expected, second)
        judgements = [
            judge(one, actual)
            for result, (_, right) in zip(outcome.results, (first, second), strict=False)  # there may be no results
            for one, actual in zip(right, result, strict=True)
        ]
    except Skip as skip:
        return record_of(twin, config, executor, "skipped", reason=str(skip))
    except Fault as fault:
        return record_of(twin, config, executor, "fail", reason=str(fault), seconds=time.perf_counter() - start)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return record_of(twin, config, executor, "fail", reason=reason, seconds=time.perf_counter() - start)
    watch(call, judgements)
    values = _resources(outcome) | {"seconds": outcome.seconds}
    if not judgements:
        return record_of(twin, config, executor, "ok", **values)
    worst = worst_of(judgements)
    if not worst.ok:
        values["reason"] = _difference(worst, judgements)
    return record_of(
        twin,
        config,
        executor,
        "ok" if worst.ok else "fail",
        max_ulp=worst.max_ulp,
        bound=worst.bound,
        mismatches=sum(one.mismatches for one in judgements),
        differing=sum(one.differing for one in judgements),
        output=worst.output,
        **values,
    )


def _expected(twin: Twin, call: Call, executor: Executor) -> Expected:
    return call, expectations(twin, call) if executor.computes else []


def _difference(worst: Judgement, judgements: list[Judgement]) -> str:
    """In words. The second call is named if the first was right."""
    if worst.bound == 0:
        what = f"{worst.output}{list(worst.worst)} differs, and it must be equal"
    elif worst.mismatches:
        what = f"{worst.output}{list(worst.worst)} is off by {worst.max_ulp:.3g} ULP; {worst.bound:.3g} are allowed"
    else:
        what = f"{worst.rounded_elsewhere} are not the reference's own: it is rounded elsewhere than the reference says"
    first = judgements[: len(judgements) // 2]
    return what + (", in the second call" if all(one.ok for one in first) else "")


def _resources(outcome: Outcome) -> dict[str, Any]:
    resources = outcome.resources
    if not resources:
        return {}
    return {
        "registers": max(one.registers for one in resources),
        "shared_bytes": max(one.shared_bytes for one in resources),
        "local_bytes": max(one.local_bytes for one in resources),
        "kernels": sorted({one.kernel for one in resources}),
    }

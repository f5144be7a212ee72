"""Trying the cases of a twin with an executor."""

from __future__ import annotations

import json
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from parity.executors.executor import Executor, Fault, Outcome, Skip
from parity.judge import Judgement, expectations, judge, worst_of
from parity.record import Record
from parity.twin import Call, Config, Twin


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

    collect()
    return found


def seed_of(config: Config) -> int:
    """So that a case is the same wherever and whenever it is tried."""
    return zlib.crc32(json.dumps(config, sort_keys=True).encode())


def try_case(
    twin: Twin,
    config: Config,
    executor: Executor,
    watch: Callable[[Call, list[Judgement]], None] = lambda *_: None,
) -> Record:
    """One case. Whatever goes wrong is in the record, and not raised. watch: is shown what was judged."""
    seed, start = seed_of(config), time.perf_counter()

    def record(status: Any, **values: Any) -> Record:
        return Record(
            twin.name,
            executor.name,
            executor.arch.name,
            executor.chip,
            dict(config),
            seed,
            status,
            **values,
        )

    try:
        call = twin.inputs(config, np.random.default_rng(seed))
        expected = expectations(twin, call) if executor.computes else []
        outcome = executor.run(twin, call, expected)
        judgements = [
            judge(one, actual) for result in outcome.results for one, actual in zip(expected, result, strict=True)
        ]
    except Skip as skip:
        return record("skipped", reason=str(skip))
    except Fault as fault:
        return record("fail", reason=str(fault), seconds=time.perf_counter() - start)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return record(
            "fail",
            reason=f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",
            seconds=time.perf_counter() - start,
        )
    watch(call, judgements)
    values = _resources(outcome) | {"seconds": outcome.seconds}
    if not judgements:
        return record("ok", **values)
    worst = worst_of(judgements)
    if not worst.ok:
        values["reason"] = _difference(worst, judgements)
    return record(
        "ok" if worst.ok else "fail",
        max_ulp=worst.max_ulp,
        bound=worst.bound,
        mismatches=sum(one.mismatches for one in judgements),
        output=worst.output,
        **values,
    )


def _difference(worst: Judgement, judgements: list[Judgement]) -> str:
    """In words. The second call is named if the first was right."""
    if worst.bound == 0:
        what = f"{worst.output}{list(worst.worst)} differs, and it must be equal"
    elif worst.mismatches:
        what = f"{worst.output}{list(worst.worst)} is off by {worst.max_ulp:.3g} ULP; {worst.bound:.3g} are allowed"
    else:
        share = f"{worst.differing} of {worst.errors.size} elements of {worst.output}"
        what = f"{share} are not the reference's own: it is rounded elsewhere than the reference says"
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

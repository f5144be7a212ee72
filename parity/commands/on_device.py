"""Cases on the GPU at hand, in this process, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from engine.usage import UsageError
from parity.executors.executor import Executor, Skip
from parity.harness import seed_of, try_case
from parity.judge import Judgement
from parity.record import Record
from parity.report.histogram import Histogram, Histograms
from parity.twin import Call, Config, Twin

if TYPE_CHECKING:
    from parity.executors.device import DeviceExecutor


def gpu() -> DeviceExecutor:
    """Errors: UsageError where there is none to run on."""
    if find_spec("torch") is None:
        raise UsageError("device needs torch; pip install 'diptych[gpu]' brings it")
    from parity.executors.device import DeviceExecutor

    try:
        return DeviceExecutor()
    except (Skip, ValueError) as error:
        raise UsageError(f"device: {error}") from error


def try_on_device(executor: Executor, cases: Sequence[tuple[Twin, Config]], histograms: Histograms) -> Iterator[Record]:
    """A record of each case; how the errors are spread is added to `histograms`."""
    is_lost = False
    for twin, config in cases:
        place = (twin.name, executor.name, executor.arch.name)

        def watch(_: Call, judgements: list[Judgement], place: tuple[str, str, str] = place) -> None:
            for one in judgements:
                if one.bound > 0:
                    histograms.setdefault((*place, one.dtype), Histogram()).add(one)

        if is_lost:
            reason = "a case before it left the GPU unusable"
            yield Record(*place, executor.chip, dict(config), seed_of(config), "skipped", reason=reason)
            continue
        record = try_case(twin, config, executor, watch)
        is_lost = record.status == "fail" and _is_lost()
        yield record


def _is_lost() -> bool:
    """Has an access to memory that is nobody's ended all work of this process on the GPU?"""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False

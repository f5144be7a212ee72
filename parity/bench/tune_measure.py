"""How `diptych tune` measures one operation: each choice by itself. One that fails is told, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimized.compile.kernel import Kernel
from optimized.device import Device
from parity.bench.gpu_timing import microseconds, sets_for
from parity.bench.tune_work import Subject, maker

_WORDS = 200  # characters of a reason


@dataclass
class Found:
    """Of one operation at one number of rows."""

    times: dict[str, float] = field(default_factory=dict)  # microseconds, by choice
    failed: dict[str, str] = field(default_factory=dict)  # why, by choice
    is_alive: bool = True  # does the GPU still take work of this process?


def measure(
    subject: Subject,
    device: Device,
    per_token: int,
    refused: Mapping[Kernel, str],
    without: Collection[str] = (),
) -> Found:
    """On the GPU at hand. per_token: experts of each. refused: kernels that do not compile, and why. without: choices
    that are not to be tried."""
    import torch

    failed, choices = _sorted_out(subject, device, refused, without)
    make = maker(subject, per_token)
    try:
        sets = [subject.calls(choices, make) for _ in range(sets_for(subject.num_bytes))]
    except torch.OutOfMemoryError as error:  # of this operation: others may fit
        return Found({}, failed | dict.fromkeys(choices, f"OutOfMemoryError: {error}"[:_WORDS]))
    return time_each({choice: [calls[choice] for calls in sets] for choice in choices}, failed)


def _sorted_out(
    subject: Subject, device: Device, refused: Mapping[Kernel, str], without: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Why some choices are not tried, and the rest."""
    failed = {}
    for choice in subject.choices(device.arch):
        kernels = subject.kernels(device.arch, device.num_sms, [choice])
        reason = "not tried" if choice in without else next((refused[one] for one in kernels if one in refused), None)
        if reason is not None:
            failed[choice] = reason[:_WORDS]
    return failed, [choice for choice in subject.choices(device.arch) if choice not in failed]


def time_each(
    calls: Mapping[str, Sequence[Callable[[], Any]]],
    failed: Mapping[str, str],
    timed: Callable[[Sequence[Callable[[], Any]]], float] = microseconds,
    synchronize: Callable[[], None] | None = None,
) -> Found:
    """By choice, its calls on sets of buffers. After an error that the GPU does not recover from, no more is tried."""
    import torch

    found = Found({}, dict(failed))
    for choice, on_sets in calls.items():
        try:
            found.times[choice] = round(timed(on_sets), 2)
        except Exception as error:  # whatever a library raises
            why = error.__cause__ or error
            found.failed[choice] = f"{type(why).__name__}: {why}"[:_WORDS]
            try:
                (synchronize or torch.cuda.synchronize)()
            except RuntimeError:  # an address that was not the kernel's, for one: the process loses the GPU
                found.is_alive = False
                break
    return found

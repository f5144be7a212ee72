"""What a launch did, beside its effect on memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulators.gpu.launch import Launch
from simulators.gpu.watch import Finding, Watcher


@dataclass(frozen=True)
class Report:
    """Of one launch that came to its end."""

    launch: Launch
    thread_instructions: int  # executed, those of a false guard among them
    seconds: float
    findings: tuple[Finding, ...] = ()  # in the order in which they were met
    watchers: Sequence[Watcher] = field(default=(), repr=False)  # those that watched, with what they counted

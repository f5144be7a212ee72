"""What is known so far of a twin's cases with one executor, for one architecture: a row of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parity.record import Record


@dataclass
class Tally:
    twin: str
    executor: str
    arch: str
    total: int  # cases there will be
    records: list[Record] = field(default_factory=list)  # of those that are done

    @property
    def failures(self) -> list[Record]:
        return [one for one in self.records if one.status == "fail"]

    @property
    def skipped(self) -> list[Record]:
        return [one for one in self.records if one.status == "skipped"]

    @property
    def is_done(self) -> bool:
        return len(self.records) == self.total

    @property
    def status(self) -> str:
        if self.failures:
            return "fail"
        if not self.is_done:
            return "running" if self.records else "waiting"
        return "skipped" if len(self.skipped) == self.total else "ok"

    @property
    def worst(self) -> Record | None:
        return worst_case(self.records)

    @property
    def registers(self) -> int | None:
        return _most(one.registers for one in self.records)

    @property
    def shared_bytes(self) -> int | None:
        return _most(one.shared_bytes for one in self.records)

    @property
    def local_bytes(self) -> int | None:
        return _most(one.local_bytes for one in self.records)

    @property
    def seconds(self) -> float:
        """Of work; processes that work side by side add up."""
        return sum(one.seconds for one in self.records)


def shortcoming(tallies: Sequence[Tally]) -> str | None:
    """Why it cannot be said that all cases hold; None if it can."""
    failed = sum(len(one.failures) for one in tallies)
    missing = sum(one.total - len(one.records) for one in tallies)
    if failed:
        return f"{failed} failed" + (f", {missing} have no record" if missing else "")
    if missing:
        return f"{missing} have no record"
    if all(record.status == "skipped" for one in tallies for record in one.records):
        return "nothing was tried"
    return None


def worst_case(records: Iterable[Record]) -> Record | None:
    """Of those that were computed, the one that fails, or comes nearest to its bound."""
    return max((one for one in records if one.max_ulp is not None), key=_nearness, default=None)


def _nearness(record: Record) -> tuple[bool, float]:
    assert record.max_ulp is not None and record.bound is not None
    return record.status == "fail", record.max_ulp / max(record.bound, 1e-9)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

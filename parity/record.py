"""What is kept of each case that was tried: one JSON object a case."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "fail", "skipped"]


@dataclass(frozen=True)
class Record:
    twin: str
    executor: str
    arch: str
    chip: str | None  # the device's name; None where nothing ran on one
    config: dict[str, Any]
    seed: int
    status: Status
    max_ulp: float | None = None  # of the element nearest to its bound; None where nothing was computed
    bound: float | None = None
    mismatches: int = 0  # elements beyond their bound, of all outputs in both calls
    output: str | None = None  # the output that these are of: the worst
    registers: int | None = None  # the most of any kernel of the case
    shared_bytes: int | None = None
    local_bytes: int | None = None
    seconds: float = 0.0
    reason: str | None = None  # why it failed or was skipped
    kernels: list[str] = field(default_factory=list)
    differing: int = 0  # elements of narrow outputs that are not the reference's own
    source: str | None = None  # the hash of the optimized panel's text that was tried

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def as_json(self) -> dict[str, Any]:
        values = asdict(self) | {"ok": self.ok}
        return {name: _finite(value) for name, value in values.items()}


def write(records: Iterable[Record], file: Path) -> None:
    """A JSON list, one record a line."""
    lines = ",\n".join(json.dumps(one.as_json(), sort_keys=True) for one in records)
    file.write_text(f"[\n{lines}\n]\n")


def _finite(value: Any) -> Any:
    """JSON has no infinity: text stands for it."""
    return "inf" if value == float("inf") else value
